#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs Ferry under a temporary prefix, builds a small project, the examples and the program of the
# README against it and runs them.
#   install_consumer_test.sh BUILD-FOLDER WORK-FOLDER VERSION EXAMPLES-FOLDER CMAKE-ARGUMENT...
set -euo pipefail

consumer=$(cd "$(dirname "${BASH_SOURCE[0]}")/consumer" && pwd)
build=$1
work=$2
version=$3
examples=$4
shift 4

rm -rf "$work"
mkdir -p "$work"
echo "installing"
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"

echo "building the consumer"
cmake -S "$consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DFERRY_WANTED_VERSION="$version" -DFERRY_EXAMPLES="$examples" "$@"
cmake --build "$work/build"

echo "running the installed tool"
said=$("$work/prefix/bin/ferry" --version)
echo "$said"
if [[ $said != *"$version"* ]]; then
  echo "ferry --version does not say $version" >&2
  exit 1
fi

# The public headers and no others.
if ! diff <(cd "$examples/../include" && find . -name '*.h' | sort) \
    <(cd "$work/prefix/include" && find . -type f | sort); then
  echo "the headers that are installed are not those of include/" >&2
  exit 1
fi
if grep -l INTERFACE_INCLUDE_DIRECTORIES "$work/prefix"/lib*/cmake/ferry/*.cmake >/dev/null &&
    grep -h INTERFACE_INCLUDE_DIRECTORIES -r "$work/prefix" --include='*.cmake' |
    grep -v '"${_IMPORT_PREFIX}/include"$'; then
  echo "the package's targets name the folders above" >&2
  exit 1
fi

echo "running the consumer with the installed tool"
said=$("$work/prefix/bin/ferry" run --nproc=2 -- "$work/build/consumer")
echo "$said"
if [[ $said != *"[0] 2 nodes have received, of 2"* ]]; then
  echo "the consumer's nodes have not received" >&2
  exit 1
fi

echo "running the examples with the installed tool"
said=$("$work/prefix/bin/ferry" run --nproc=2 -- "$work/build/exchange")
echo "$said"
if [[ $said != *"[1] got int32[256,1024] by "* ]]; then
  echo "node 1 of the example got no tensor" >&2
  exit 1
fi
said=$("$work/prefix/bin/ferry" run --nproc=2 -- "$work/build/key_value")
echo "$said"
if [[ $said != *"[0] 2 of 2 nodes have started"* ]]; then
  echo "node 0 of the example has not seen all nodes" >&2
  exit 1
fi

# block LANGUAGE: the first block of the README in that language.
block() {
  sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/!p;/^\`\`\`\$/q}" "$examples/../README.md"
}
echo "building and running the program of the README"
mkdir -p "$work/readme"
block cmake >"$work/readme/CMakeLists.txt"
block cpp >"$work/readme/main.cc"
cmake -S "$work/readme" -B "$work/readme/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
cmake --build "$work/readme/build"
said=$("$work/prefix/bin/ferry" run --nproc=2 -- "$work/readme/build/app")
echo "$said"
if ! grep -qxF "$said" <(sed -n 's/^    //p' "$examples/../README.md"); then
  echo "the README shows another output of its program" >&2
  exit 1
fi

# An installed file that names the build machine's folders works on no other machine.
if grep -rlF -e "$build" -e "$(dirname "$consumer")" "$work/prefix/lib" "$work/prefix/include" \
    --include='*.cmake' --include='*.h' --include='*.pc'; then
  echo "the files above name folders of this build" >&2
  exit 1
fi
rm -rf "$work"
