#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public name of the module is documented, and can be found."""
import inspect
import re
import sys
import unittest

import ferry
import ferry.jax


class ReferenceTest(unittest.TestCase):
    def public(self):
        """(path, object) of every public name, and of every public attribute of the classes among them."""
        for module, names in ((ferry, ferry.__all__), (ferry.jax, ferry.jax.__all__)):
            for name in names:
                value = getattr(module, name)
                yield f"{module.__name__}.{name}", value
                if not inspect.isclass(value):
                    continue
                for attribute in dir(value):
                    if not attribute.startswith("_") and not hasattr(OSError, attribute) \
                            and not hasattr(tuple, attribute):
                        yield f"{module.__name__}.{name}.{attribute}", inspect.getattr_static(value, attribute)

    def test_all_is_documented(self):
        # nanobind begins with the signature.
        missing = [path for path, value in self.public()
                   if not re.sub(r"^\w*\([^\n]*\) -> [^\n]*", "", value.__doc__ or "").strip()
                   or value.__doc__ == type(value).__doc__]
        self.assertEqual(missing, [])

    def test_public_names_are_there(self):
        paths = dict(self.public())
        for path in ("ferry.join", "ferry.Step.recv", "ferry.Step.arecv", "ferry.Tensor.numpy", "ferry.Transfer.wait",
                     "ferry.Store.get", "ferry.Node.barrier", "ferry.jax.join"):
            self.assertIn(path, paths)
        self.assertEqual(sorted(ferry.__all__), ferry.__all__)
        for name in ferry.__all__:
            self.assertIn(name, dir(ferry))

    def test_unknown_names_are_attribute_errors(self):
        with self.assertRaisesRegex(AttributeError, "no attribute 'pigeon'"):
            ferry.pigeon


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
