// SPDX-License-Identifier: Apache-2.0
// Keys and values are bytes; text is taken as UTF-8.
#include "python/src/store.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ferry/coordinator_client.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "python/src/arrays.h"
#include "python/src/completion_queue.h"
#include "python/src/node.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// The C++ state of ferry.Store.
struct PyStore {
  std::shared_ptr<JoinedNode> joined;

  absl::Duration LimitOf(nb::handle timeout) const {
    return Timeout::Parse(timeout, joined->default_timeout());
  }
};

std::string Bytes(nb::handle text) {
  if (PyUnicode_Check(text.ptr())) {
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<size_t>(size)};
  }
  // PyBytes_FromObject takes lists of numbers too.
  if (PyObject_CheckBuffer(text.ptr()) == 0) {
    RaiseTypeError("keys and values of the store are str or bytes");
  }
  const nb::object bytes = nb::steal(PyBytes_FromObject(text.ptr()));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::bytes ToBytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// Keys are shown, and returned, as text, or as bytes where they are no UTF-8.
nb::object KeyObject(const std::string& key) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), nullptr);
  if (text != nullptr) return nb::steal(text);
  PyErr_Clear();
  return ToBytes(key);
}

// The queue of changes that a watch has reported. Shared with its callback.
class Changes final {
 public:
  explicit Changes(std::shared_ptr<CompletionQueue> signal) : signal_(std::move(signal)) {}

  void Add(const KeyChange& change) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      changes_.push_back(change);
    }
    signal_->Add(0);
  }
  // Waits for one.
  std::optional<KeyChange> Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto has_some = [this] {
      mu_.AssertHeld();
      return !changes_.empty();
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&has_some), timeout)) return std::nullopt;
    KeyChange change = std::move(changes_.front());
    changes_.pop_front();
    return change;
  }

 private:
  const std::shared_ptr<CompletionQueue> signal_;
  absl::Mutex mu_;
  std::deque<KeyChange> changes_ ABSL_GUARDED_BY(mu_);
};

struct PyWatch {
  std::shared_ptr<JoinedNode> joined;
  // Outlives the watch.
  std::shared_ptr<Node> node;
  std::shared_ptr<CompletionQueue> signal;
  std::shared_ptr<Changes> changes;
  KeyWatch watch;
  std::string prefix;

  ~PyWatch() { Close(); }
  void Close() {
    if (joined->is_inherited()) {
      // Its locks may be held for ever.
      [[maybe_unused]] auto* const leaked = new KeyWatch(std::move(watch));
      return;
    }
    KeyWatch ended = std::move(watch);
    std::shared_ptr<Node> used = std::move(node);
    const nb::gil_scoped_release release;
    ended = KeyWatch();
    used = nullptr;
  }
};

nb::object ChangeObject(const KeyChange& change) {
  return nb::make_tuple(
      KeyObject(change.entry.key),
      change.is_deleted ? nb::object(nb::none()) : nb::object(ToBytes(change.entry.value)),
      change.entry.revision);
}

}  // namespace

void DefineStore(nb::module_& core) {
  nb::class_<PyStore>(core, "Store")
      .def(
          "__init__",
          [](PyStore* self, nb::handle node) { new (self) PyStore{JoinedNodeOf(node)}; }, "node"_a,
          nb::sig("def __init__(self, node: Node) -> None"))
      .def(
          "get",
          [](PyStore& self, nb::handle key, nb::handle timeout) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            const absl::Duration limit = self.LimitOf(timeout);
            CancellationToken token;
            return ToBytes(ValueOf(CallOfNode<absl::StatusOr<std::string>>(
                                       *self.joined,
                                       [node, name, limit, token] {
                                         return node->coordinator().Get(name, limit, token);
                                       },
                                       [token]() mutable { token.Cancel(); }),
                                   {.key = name, .waited = limit}));
          },
          "key"_a, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          nb::sig("def get(self, key: str | bytes, *, timeout: float | datetime.timedelta = ...) "
                  "-> bytes"),
          "The key's value. Waits until it exists; store[key] does not.\n\nRaises "
          "FerryTimeoutError naming the key.")
      .def(
          "get_many",
          [](PyStore& self, nb::handle keys, nb::handle timeout) {
            const std::shared_ptr<Node> node = self.joined->Use();
            std::vector<std::string> names;
            for (const nb::handle key : nb::iter(keys)) names.push_back(Bytes(key));
            const absl::Duration limit = self.LimitOf(timeout);
            CancellationToken token;
            const auto values =
                ValueOf(CallOfNode<absl::StatusOr<std::vector<std::string>>>(
                            *self.joined,
                            [node, names, limit, token] {
                              return node->coordinator().GetAll(names, limit, token);
                            },
                            [token]() mutable { token.Cancel(); }),
                        {.key = names.empty() ? "" : names.front(), .waited = limit});
            nb::list result;
            for (const std::string& value : values) result.append(ToBytes(value));
            return result;
          },
          "keys"_a, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          nb::sig("def get_many(self, keys: collections.abc.Iterable[str | bytes], *, "
                  "timeout: float | datetime.timedelta = ...) -> list[bytes]"),
          "The values of all keys, in one round trip. Waits until all exist.")
      .def(
          "_try_get",
          [](PyStore& self, nb::handle key) -> nb::object {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            auto value = CallInterruptibly<absl::StatusOr<std::string>>(
                [node, name] { return node->coordinator().TryGet(name); });
            if (absl::IsNotFound(value.status())) return nb::none();
            return ToBytes(ValueOf(std::move(value), {.key = name}));
          },
          "key"_a, nb::sig("def _try_get(self, key: str | bytes) -> bytes | None"))
      .def(
          "_list",
          [](PyStore& self, nb::handle prefix) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(prefix);
            const auto entries = ValueOf(CallInterruptibly<absl::StatusOr<std::vector<KeyValue>>>(
                [node, name] { return node->coordinator().List(name); }));
            nb::list result;
            for (const KeyValue& entry : entries)
              result.append(nb::make_tuple(KeyObject(entry.key), ToBytes(entry.value)));
            return result;
          },
          "prefix"_a, nb::sig("def _list(self, prefix: str | bytes) -> list[tuple[str, bytes]]"))
      .def(
          "set",
          [](PyStore& self, nb::handle key, nb::handle value, bool overwrite) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            const std::string bytes = Bytes(value);
            Check(CallInterruptibly<absl::Status>([node, name, bytes, overwrite] {
                    return node->coordinator().Set(name, bytes, overwrite);
                  }),
                  {.key = name});
          },
          "key"_a, "value"_a, nb::kw_only(), "overwrite"_a = true,
          nb::sig("def set(self, key: str | bytes, value: str | bytes, *, overwrite: bool = True) "
                  "-> None"),
          "Sets the key. Raises KeyExistsError if it exists and overwrite is False.")
      .def(
          "add",
          [](PyStore& self, nb::handle key, int64_t delta) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            return ValueOf(CallInterruptibly<absl::StatusOr<int64_t>>([node, name, delta] {
                             return node->coordinator().Add(name, delta);
                           }),
                           {.key = name});
          },
          "key"_a, "delta"_a = 1, nb::sig("def add(self, key: str | bytes, delta: int = 1) -> int"),
          "Adds to the decimal number that the key holds, 0 if it does not exist, and returns the "
          "sum.")
      .def(
          "compare_set",
          [](PyStore& self, nb::handle key, nb::handle expected, nb::handle desired) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            std::optional<std::string> old;
            if (!expected.is_none()) old = Bytes(expected);
            const std::string bytes = Bytes(desired);
            return ValueOf(CallInterruptibly<absl::StatusOr<bool>>([node, name, old, bytes] {
                             return node->coordinator().CompareAndSet(name, old, bytes);
                           }),
                           {.key = name});
          },
          "key"_a, "expected"_a.none(), "desired"_a,
          nb::sig("def compare_set(self, key: str | bytes, expected: str | bytes | None, desired: "
                  "str | bytes) -> bool"),
          "Sets the key if it holds `expected` (None: if it does not exist). Returns whether it "
          "did.")
      .def(
          "delete",
          [](PyStore& self, nb::handle key, bool subtree) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const std::string name = Bytes(key);
            Check(CallInterruptibly<absl::Status>(
                      [node, name, subtree] { return node->coordinator().Delete(name, subtree); }),
                  {.key = name});
          },
          "key"_a, nb::kw_only(), "subtree"_a = false,
          nb::sig("def delete(self, key: str | bytes, *, subtree: bool = False) -> None"),
          "Deletes the key, if it exists; with `subtree` also all keys that begin with it and "
          "\"/\".");

  nb::class_<PyWatch>(core, "Watch")
      .def(
          "__init__",
          [](PyWatch* self, nb::handle node, nb::handle prefix) {
            std::shared_ptr<JoinedNode> joined = JoinedNodeOf(node);
            std::shared_ptr<Node> used = joined->Use();
            std::shared_ptr<CompletionQueue> signal = CompletionQueue::Create();
            auto changes = std::make_shared<Changes>(signal);
            std::string name = Bytes(prefix);
            absl::StatusOr<KeyWatch> watch;
            {
              const nb::gil_scoped_release release;
              watch = used->coordinator().Watch(
                  name, [changes](const KeyChange& change) { changes->Add(change); });
            }
            KeyWatch started = ValueOf(std::move(watch), {.key = name});
            new (self) PyWatch{std::move(joined),  std::move(used),    std::move(signal),
                               std::move(changes), std::move(started), std::move(name)};
          },
          "node"_a, "prefix"_a)
      .def(
          "next",
          [](PyWatch& self, nb::handle timeout) {
            self.joined->CheckNotForked();
            const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
            std::optional<KeyChange> change;
            bool is_closed = false;
            WaitInSlices(limit, [&](absl::Duration slice) {
              change = self.changes->Next(slice);
              if (change.has_value()) return true;
              const nb::gil_scoped_acquire acquire;
              is_closed = self.node == nullptr || self.joined->is_closed();
              return is_closed;
            });
            if (change.has_value()) return ChangeObject(*change);
            if (is_closed)
              Raise(absl::FailedPreconditionError("the watch was closed"), {.key = self.prefix});
            Raise(absl::DeadlineExceededError(absl::StrCat("no key under \"", self.prefix,
                                                           "\" was changed within ",
                                                           absl::FormatDuration(limit))),
                  {.key = self.prefix, .waited = limit});
          },
          nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          nb::sig("def next(self, *, timeout: float | datetime.timedelta = ...) -> tuple[str, "
                  "bytes | None, int]"),
          R"(The next change, in order: the key, its value or None if it was deleted, and its revision, which grows with every
change of the store.

Raises FerryTimeoutError.)")
      .def(
          "_poll",
          [](PyWatch& self) -> nb::object {
            std::optional<KeyChange> change = self.changes->Next(absl::ZeroDuration());
            if (!change.has_value()) return nb::none();
            return ChangeObject(*change);
          },
          nb::sig("def _poll(self) -> tuple[str, bytes | None, int] | None"))
      .def("_take_signal", [](PyWatch& self) { self.signal->Take(); })
      .def(
          "fileno", [](PyWatch& self) { return self.signal->fd(); },
          "A descriptor that is readable when there are changes.")
      .def("close", &PyWatch::Close, "Ends the watch.");
}

}  // namespace ferry::python
