"""Makes a wheel of gcomp.py and gcomp_torch.py: pip install ./examples/python. It holds the shared object of gcomp.h, compiled once by
$CC with $CFLAGS. It takes a C compiler and stb_ds.h (Debian: libstb-dev, or a copy beside gcomp.h), but no headers of Python. The
wheel serves every Python 3 of the system that it was made on."""
import os
import re
import shutil
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HEADERS = ("gcomp.h", "gcomp_advise.h", "gcomp_sockets.h", "gcomp_layouts.h")
MODULES = ("gcomp", "gcomp_torch")


def header(name):
    """The path of a header: beside this file in a source distribution, else in the repository."""
    for place in (HERE, ROOT, os.path.join(ROOT, "examples", "adapters")):
        if os.path.exists(os.path.join(place, name)):
            return os.path.join(place, name)
    raise SystemExit("%s is neither beside %s nor in the repository: pip install the directory of the repository" % (name, __file__))


def version():
    with open(header("gcomp.h"), encoding="utf-8") as f:
        number = int(re.search(r"^#define GCOMP_VERSION (\d+)", f.read(), re.M).group(1))
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


def stb_of_system():
    """The path of the stb_ds.h that the compiler finds, or None."""
    command = (os.environ.get("CC") or "cc").split() + ["-M", "-x", "c", "-"]
    for name in ('"stb_ds.h"', "<stb/stb_ds.h>"):
        try:
            seen = subprocess.run(command, input="#include %s\n" % name, text=True, capture_output=True)
        except OSError:
            return None
        found = re.search(r"\S+stb_ds\.h", seen.stdout)
        if seen.returncode == 0 and found:
            return found.group(0)
    return None


class BuildPy(build_py):
    """Each module becomes a package, for only packages can say by py.typed that they have types."""

    def run(self):
        for module in MODULES:
            into = os.path.join(self.build_lib, module)
            self.mkpath(into)
            self.copy_file(os.path.join(HERE, module + ".py"), os.path.join(into, "__init__.py"))
            self.copy_file(os.path.join(HERE, "py.typed"), os.path.join(into, "py.typed"))
        with open(os.path.join(self.build_lib, "gcomp", "__main__.py"), "w", encoding="utf-8") as f:
            f.write("from . import _main\n\n_main()\n")

    def get_outputs(self, include_bytecode=True):
        files = [os.path.join(m, f) for m in MODULES for f in ("__init__.py", "py.typed")] + [os.path.join("gcomp", "__main__.py")]
        return [os.path.join(self.build_lib, f) for f in files]


class BuildExt(build_ext):
    """The shared object, which ctypes loads: it is no module of Python's, and has a plain name."""

    def get_ext_fullpath(self, ext_name):
        return os.path.join(self.build_lib, "gcomp", "libgcomp.so")

    def build_extension(self, ext):
        directory = os.path.dirname(header("gcomp.h"))
        if not os.path.exists(os.path.join(directory, "stb_ds.h")) and not stb_of_system():
            raise SystemExit("gcomp.h needs stb_ds.h, which the compiler %s does not find: install gcc and libstb-dev, or copy stb_ds.h "
                             "beside %s" % (os.environ.get("CC") or "cc", header("gcomp.h")))
        self.mkpath(self.build_temp)
        source = os.path.join(self.build_temp, "libgcomp.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write("#define GCOMP_IMPLEMENTATION\n" + "".join('#include "%s"\n' % name for name in HEADERS))
        target = self.get_ext_fullpath(ext.name)
        self.mkpath(os.path.dirname(target))
        command = (os.environ.get("CC") or "cc").split() + (os.environ.get("CFLAGS") or "-O2").split()
        command += ["-shared", "-fPIC", "-pthread"]
        command += ["-DGCOMP_EXPORT", "-DGCOMP_LAYOUTS_SHARED", "-DGCOMP_ADVISE_SHARED", "-DGCOMP_SOCKETS_SHARED"]
        for name in HEADERS:
            command += ["-I", os.path.dirname(header(name))]
        self.spawn(command + [source, "-o", target])


class Sdist(sdist):
    """The headers of the repository go with the source, and stb_ds.h."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        paths = [header(name) for name in HEADERS]
        beside = os.path.join(os.path.dirname(header("gcomp.h")), "stb_ds.h")
        paths += [beside] if os.path.exists(beside) else filter(None, [stb_of_system()])
        for path in paths:
            shutil.copy(path, os.path.join(base_dir, os.path.basename(path)))


class BdistWheel(bdist_wheel):
    """The wheel is for one system, and for every Python 3 on it."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    name="gcomp", version=version(), license="MIT", python_requires=">=3.8",
    description="gradient compression for NumPy arrays, PyTorch tensors and other buffers, over any transport",
    py_modules=list(MODULES), ext_modules=[Extension("gcomp.libgcomp", [])], zip_safe=False,
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt, "sdist": Sdist, "bdist_wheel": BdistWheel})
