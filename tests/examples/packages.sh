#!/bin/sh
# What packages bring, as TAP: make install, pkg-config, CMake, pip, the JSON of layouts. All is built in build/test/packages, for the
# scalar set and without optimisation: what is tested is that users' builds find everything.
#
#   sh tests/examples/packages.sh PYTHON "pkg-config cmake pip"     with these tools, or with some of them
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
work=$root/build/test/packages
python=$1
tools=$2
rm -rf "$work"
mkdir -p "$work"
quick="-O0 -w -DGCOMP_MAX_ISA=1"
export CC="${CC:-gcc}"
number=0
status=0
has() { case " $tools " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
try() { # label command...: passes if it succeeds
    label=$1
    shift
    number=$((number + 1))
    if ("$@") >"$work/$number.log" 2>&1; then
        echo "ok $number - $label"
    else
        echo "not ok $number - $label"
        tail -30 "$work/$number.log" | sed 's/^/# /'
        status=1
    fi
}

# ---------------- make install
installs() {
    make -s install DESTDIR="$work/stage" PREFIX=/opt/gcomp &&
        for file in include/gcomp/gcomp.h include/gcomp/gcomp_threads.h include/gcomp/stb_ds.h share/cmake/gcomp/gcomp-config.cmake; do
            [ "$(stat -c %a "$work/stage/opt/gcomp/$file")" = 644 ] || return
        done && grep -qx 'prefix=/opt/gcomp' "$work/stage/opt/gcomp/share/pkgconfig/gcomp.pc"
}
uninstalls() {
    make -s uninstall DESTDIR="$work/stage" PREFIX=/opt/gcomp && [ -z "$(find "$work/stage" -type f)" ]
}
refuses() { # without stb_ds.h: says so, and copies nothing
    ! make -s install PREFIX="$work/none" STB_DS_H=/nonexistent/stb_ds.h >"$work/refused" && grep -q libstb-dev "$work/refused" && [ ! -e "$work/none" ]
}
try "make install puts files below DESTDIR and PREFIX" installs
try "make uninstall removes them" uninstalls
try "make install without stb_ds.h says what to install" refuses
make -s install PREFIX="$work/usr" >/dev/null

# ---------------- pkg-config
a_line() { # in a directory of its own, so that nothing of the repository is found
    cd "$work" && cp "$root/examples/first.c" . && export PKG_CONFIG_PATH="$work/usr/share/pkgconfig" &&
        pkg-config --atleast-version=0.4 gcomp && $CC $quick first.c $(pkg-config --cflags gcomp) -o first -pthread && ./first
}
has pkg-config && try "a line with pkg-config" a_line

# ---------------- CMake
project() { # name options...: configured, built and run outside of the repository
    cp -r examples/packages/project "$work/$1.source" && cmake -S "$work/$1.source" -B "$work/$1" -DCMAKE_C_FLAGS="$quick" "$2" &&
        cmake --build "$work/$1" && "$work/$1/uses_gcomp"
}
another() { # version: is not found
    mkdir -p "$work/another" && printf 'cmake_minimum_required(VERSION 3.11)\nproject(another NONE)\nfind_package(gcomp %s REQUIRED)\n' "$1" \
        >"$work/another/CMakeLists.txt" && ! cmake -S "$work/another" -B "$work/another/$1" -DCMAKE_PREFIX_PATH="$work/usr"
}
without_stb() { # the package says what is missing
    make -s install PREFIX="$work/bare" STB_DS_H=none && mkdir -p "$work/needs" &&
        printf 'cmake_minimum_required(VERSION 3.11)\nproject(needs NONE)\nfind_package(gcomp REQUIRED)\n' >"$work/needs/CMakeLists.txt" &&
        ! cmake -S "$work/needs" -B "$work/needs/b" -DCMAKE_PREFIX_PATH="$work/bare" \
            -DCMAKE_IGNORE_PATH="/usr/include;/usr/include/stb;/usr/local/include;/usr/local/include/stb" >"$work/needs/said" 2>&1 && tr -s ' \n' ' ' <"$work/needs/said" | grep -q "needs stb_ds.h: install libstb-dev"
}
if has cmake; then
    try "CMake finds what is installed" project found "-DCMAKE_PREFIX_PATH=$work/usr"
    try "CMake takes the repository as a subdirectory" project inside "-DGCOMP_REPOSITORY=$root"
    for version in 0.3 0.4.9 0.5 1; do try "CMake does not find version $version" another $version; done
    try "without stb_ds.h CMake says what to install" without_stb
fi

# ---------------- JSON
layouts() {
    $CC $quick -I. -Iexamples/adapters examples/layouts.c -o "$work/layouts" && "$work/layouts" >"$work/layouts.json" && "$python" -c '
import json, sys
all = json.load(open(sys.argv[1]))
assert all["structs"]["gcomp_key"] == {"size": 16, "fields": {"shared": {"offset": 0, "size": 8}, "own": {"offset": 8, "size": 8}}}
assert len(all["structs"]) == 16 and all["constants"]["GCOMP_BF16"] == 2 and all["constants"]["GCOMP_OK"] == 0
assert all["constants"]["GCOMP_NOT_FINITE"] < 0, all' "$work/layouts.json"
}
try "layouts and constants as JSON" layouts

# ---------------- pip, in a copy of the repository: what setuptools leaves there is not ours
pip_install() { # what
    CFLAGS=$quick "$work/venv/bin/python" -m pip install --no-index --no-build-isolation --no-deps --force-reinstall "$1"
}
from_repository() {
    mkdir "$work/copy" && cp -r gcomp.h examples "$work/copy" && "$python" -m venv --system-site-packages "$work/venv" &&
        pip_install "$work/copy/examples/python"
}
used() { # two workers that are threads, outside of the repository, with the shared object of the wheel
    cd "$work" && env -u GCOMP_LIBRARY -u PYTHONPATH XDG_CACHE_HOME="$work/cache" venv/bin/python -c '
import array, importlib.metadata, os, sys, threading, gcomp
here = os.path.dirname(gcomp.__file__)
assert here.startswith(sys.prefix) and gcomp.LIBRARY == os.path.join(here, "libgcomp.so"), gcomp.LIBRARY
names = {str(file) for file in importlib.metadata.files("gcomp")}
assert {"gcomp/py.typed", "gcomp/libgcomp.so", "gcomp_torch/py.typed"} <= names, names
assert importlib.metadata.version("gcomp").startswith(gcomp.version()), gcomp.version()
box, barrier, means = [None, None], threading.Barrier(2, timeout=60), [None, None]
def swap(rank, mine):
    box[rank] = mine
    barrier.wait()
    everyone = list(box)
    barrier.wait()
    return everyone
def allreduce(rank, data):
    everyone = swap(rank, list(data))
    for i in range(len(data)):
        data[i] = sum(one[i] for one in everyone)
def work(rank):
    comm = gcomp.Comm(rank, 2, lambda data, dtype: allreduce(rank, data), lambda mine: swap(rank, mine))
    grad = array.array("f", [1.0 + 2 * rank] * 4096)
    with gcomp.open("int:bits=8", comm=comm) as gc:
        gc.add_tensor("weights", 64, 64)
        gc.exchange([grad])
    means[rank] = grad
threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
for t in threads: t.start()
for t in threads: t.join()
assert means[0] == means[1] and abs(means[0][7] - 2) < 0.01, means
import typing
assert typing.get_type_hints(gcomp.encode)["checksum"] is bool, typing.get_type_hints(gcomp.encode)' && [ ! -e "$work/cache" ] &&
        venv/bin/python -m gcomp | grep '^topk '
}
from_source() { # the source distribution has all that it needs
    rm -rf "$work/copy/examples/python/dist" && (cd "$work/copy/examples/python" && "$work/venv/bin/python" setup.py -q sdist -d "$work/dist") &&
        tar tzf "$work"/dist/gcomp-*.tar.gz | grep -q '/gcomp_sockets.h$' && tar tzf "$work"/dist/gcomp-*.tar.gz | grep -q '/stb_ds.h$' &&
        rm -rf "$work/copy" && pip_install "$(echo "$work"/dist/gcomp-*.tar.gz)"
}
if has pip; then
    try "pip install ./examples/python" from_repository
    try "Python finds modules, types and the shared object, and two workers exchange" used
    try "pip installs the source distribution" from_source
    try "and that works too" used
fi
echo "1..$number"
exit $status
