"""Compiles the core: the modules that have a `.pxd` file; puts notebooks into wheels. All else is in pyproject.toml.

Without a C compiler the build takes one from the package index; failing that, it leaves the core out. With
KERNBENCH_ENGINE=core a core that cannot be built is an error; with KERNBENCH_ENGINE=definition none is built.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))

from kernbench import _engine_selection  # noqa: E402

# Types come from .pxd files alone: `int` in an annotation means an integer of any size.
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "infer_types": True,
    "auto_pickle": False,
    "emit_code_comments": False,
}
# -O2 takes twice as long and runs no faster. What Cython marks as run once, on import, is not optimized at all.
OPTIONS = ("-O1", "-g0", "-w", "-DCYTHON_SMALL_CODE=__attribute__((cold,optimize(0)))")
ZIG = ROOT / "build" / "ziglang"
# What `kernbench lab` and `kernbench milestone` read: in a checkout, where it is; in a wheel, in the package.
SHIPPED = ("notebooks/*.ipynb", *(f"milestones/{form}" for form in ("*.ipynb", "*.yaml", "kept/*", "*/data/**/*")))
SHARE = Path(_engine_selection.PACKAGE.name, "notebook", "share")
ENGINE = os.environ.get(_engine_selection.VARIABLE)


class BuildCore(build_ext):
    """Compiles the modules whose built files do not match their sources."""

    def run(self) -> None:
        """Build in place, or into the build folder. A core that cannot be built is left out."""
        if not self.extensions:
            return
        try:
            self._build((ROOT if self.inplace else ROOT / self.build_lib) / _engine_selection.PACKAGE.name)
        except Exception as error:
            if ENGINE == _engine_selection.CORE:
                raise
            say(f"the compiled core is left out: {error}. Runs use the definition in Python, which is slower")
            self.extensions = []

    def build_extensions(self) -> None:
        """Compile with our options, whatever Python itself was compiled with; CFLAGS has the last word."""
        if self.compiler.compiler_type != "msvc":
            for extension in self.extensions:
                extension.extra_compile_args = [*OPTIONS, *shlex.split(os.environ.get("CFLAGS", ""))]
        super().build_extensions()

    def _build(self, package: Path) -> None:
        sources = _engine_selection.modules()
        files = sorted({*sources.values(), *_engine_selection.PACKAGE.rglob("*.pxd")})
        record = {
            file.relative_to(_engine_selection.PACKAGE).as_posix(): _engine_selection.hash_of(file) for file in files
        }
        built = {package.parent / _engine_selection.built(source).relative_to(ROOT) for source in sources.values()}
        for orphan in {*package.rglob(f"*{_engine_selection.SUFFIX}")} - built:
            orphan.unlink()
        old = {} if self.force else _engine_selection.read_record(package)
        if old == record and all(file.is_file() for file in built):
            return
        stale = [e for e in self.extensions if is_stale(Path(e.sources[0]), package, record, old)]
        if stale:
            self._compile(stale, package, record)
        write_record(package, record)

    def _compile(self, stale: list[Extension], package: Path, record: Mapping[str, str]) -> None:
        from Cython.Build import cythonize

        use_compiler()
        say(f"compiling {len(stale)} of the {len(self.extensions)} modules of the core")
        # An interrupted build leaves modules that match no record.
        package.mkdir(parents=True, exist_ok=True)
        pending = {Path(e.sources[0]).relative_to(_engine_selection.PACKAGE.name).as_posix(): "-" for e in stale}
        write_record(package, {**record, **pending})
        c = str(Path(self.build_temp) / "c")
        options = {"compiler_directives": DIRECTIVES, "force": True, "quiet": True}
        translated = cythonize(stale, build_dir=c, nthreads=os.cpu_count(), **options)
        for extension, done in zip(stale, translated, strict=True):
            extension.sources = done.sources
        stale.sort(key=lambda extension: -Path(extension.sources[0]).stat().st_size)  # the longest first
        self.extensions, self.force, self.parallel = stale, True, os.cpu_count()
        super().run()


class BuildPy(build_py):
    """Copies the package and, if it is built to be installed elsewhere, the notebooks."""

    def run(self) -> None:
        """Copy into the build folder."""
        super().run()
        if self.editable_mode:
            return
        for source in (
            path for form in SHIPPED for path in ROOT.glob(form) if path.is_file() and path.suffix != ".pyc"
        ):
            target = Path(self.build_lib) / SHARE / source.relative_to(ROOT)
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target))


def is_stale(source: Path, package: Path, record: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Return whether a module has to be compiled: it is not built, or a file that it depends on has changed."""
    from Cython.Build.Dependencies import create_dependency_tree

    inputs = create_dependency_tree(quiet=True).all_dependencies(str(source))
    ours = [Path(i).relative_to(_engine_selection.PACKAGE.name).as_posix() for i in inputs if not Path(i).is_absolute()]
    return (
        any(old.get(path) != record.get(path) for path in ours)
        or not _engine_selection.built(package.parent / source).is_file()
    )


def write_record(package: Path, record: Mapping[str, str]) -> None:
    """Write which sources the core in `package` is built from."""
    text = "".join(f"{digest} {path}\n" for path, digest in record.items())
    (package / _engine_selection.RECORD).write_text(text, encoding="utf-8", newline="\n")


def use_compiler() -> None:
    """Have a C compiler: the system's, or one from the package index.

    Raises
    ------
    RuntimeError
        If there is none, or no header files of Python to compile with.
    """
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise RuntimeError("Python.h is missing; install the header files of Python, such as python3-dev")
    if sys.platform == "win32" or shutil.which(shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))[0]):
        return
    zig = ZIG / "ziglang" / "zig"
    if not zig.is_file():
        say("no C compiler found: downloading one from the package index, ziglang (about 100 MB)")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=1", "--target", str(ZIG), "ziglang"]
        if subprocess.run(pip, check=False).returncode:
            raise RuntimeError("there is no C compiler, and none could be downloaded")
    os.environ["CC"] = f"{shlex.quote(str(zig))} cc"


def say(line: str) -> None:
    """Print a line on the error stream, and on the terminal if pip hides that."""
    print(f"kernbench: {line}", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        with suppress(OSError), Path("/dev/tty").open("r+", encoding="utf-8") as terminal:
            terminal.write(f"kernbench: {line}\n")


if __name__ == "__main__":  # not in the processes that translate
    setup(
        cmdclass={"build_ext": BuildCore, "build_py": BuildPy},
        ext_modules=[
            Extension(name, [source.relative_to(ROOT).as_posix()])
            for name, source in _engine_selection.modules().items()
            if ENGINE != _engine_selection.DEFINITION
        ],
    )
