"""``jitree cache pack``: machine code that travels with a module; what becomes of files that do not fit."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.codegen import image
from jitree.codegen.image import batch, contents, shipped
from jitree.codegen.image.builder import BuilderThread
from jitree.codegen.image.contents import Mismatch, Pack, packed
from jitree.codegen.image.flat import Recipe, hashed
from jitree.codegen.image.keys import processor_key
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.tools import cache
from jitree.vmfb.decode import BytecodeModule
from tests.tools.command import ROOT, jitree_process
from tests.tools.command import jitree as command

DIGITS = ROOT / "examples" / "digits" / "digits.vmvx.vmfb"
ARITHMETIC = ROOT / "tests" / "data" / "programs" / "layers.vmfb"
ZEROS = np.zeros((8, 8), np.float32)
LEVEL = next(iter(shipped.levels_here()), "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of the digits for this processor."""
    path = tmp_path_factory.mktemp("pack") / "digits.jit"
    outcome = command("cache", "pack", DIGITS, "-o", path)
    assert outcome.code == 0, outcome.stderr
    assert "for this processor" in outcome.stdout
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    return path


@pytest.fixture
def no_builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Images of programs that a builder is wanted for; none is started."""
    wanted: list[str] = []
    start = image.Provider._start

    def _start(provider: image.Provider, niceness: int | None) -> None:
        if provider.recipe.data:
            wanted.append(provider.recipe.name)
        else:
            start(provider, niceness)

    monkeypatch.setattr(image.Provider, "_start", _start)
    monkeypatch.setattr(batch, "prepare_builder", lambda *arguments: None)
    yield wanted


def classified(session: jitree.Session, **options: object) -> np.ndarray:
    module = session.load(DIGITS, **options)  # type: ignore[call-overload]
    return np.asarray(module.classify(ZEROS))


def kernels_run(session: jitree.Session) -> bool:
    """Whether machine code of the digits' kernels is there, without looking into the cache."""
    module = BytecodeModule.load(DIGITS)
    executables = vmvx_kernels.executables(module.module)
    names = {recipe.title for executable in executables for recipe in vmvx_kernels.recipes(executable)}
    found = [item for item in list(image._providers.values()) if item.recipe.title in names]
    return bool(found) and all(item.image is not None for item in found)


def test_nothing_is_built_or_kept(made: Path, folder: Path, no_builder: list[str]) -> None:
    """With a pack, of tier native too, which would wait for a builder."""
    with jitree.Session("local-sync", tier="fast") as session:
        expected = classified(session)
    for tier in ("native", "auto"):
        with warnings.catch_warnings(), jitree.Session("local-task", tier=tier) as session:
            warnings.simplefilter("error")
            np.testing.assert_array_equal(classified(session, compiled=made), expected)
            assert kernels_run(session)
    assert not no_builder
    assert not list(folder.glob("native*")) and not list(folder.glob("vmvx*"))


def test_it_ends_with_its_session(made: Path) -> None:
    session = jitree.Session("local-sync", tier="native")
    classified(session, compiled=os.fspath(made))
    assert len(image.packs) == 1
    session.close()
    del session
    gc.collect()
    assert not image.packs


def test_a_failed_load_leaves_none(made: Path) -> None:
    with jitree.Session("local-sync", tier="fast") as session:
        with pytest.raises(NotFoundError):
            session.load(DIGITS, "nowhere.vmfb", compiled=made)
        assert not image.packs
        session.load(DIGITS)
        assert not image.packs


def test_several_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_builder: list[str]) -> None:
    """Each takes the best of those that it has; the last bits are the same on all."""
    monkeypatch.undo()
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "several.jit"
    names = [name for name in ("x86-64-v3", "aarch64") if name != LEVEL]
    outcome = command("cache", "pack", DIGITS, "--output", path, f"--processor={','.join(names)}")
    assert outcome.code == 0, outcome.stderr
    fitting = [name for name in names if name in shipped.levels_here()]
    if not fitting:
        with pytest.raises(Mismatch, match="it is for processors"):
            Pack(str(path))
        return
    with jitree.Session("local-sync", tier="fast") as session:
        expected = classified(session)
    with jitree.Session("local-sync", tier="native") as session:
        np.testing.assert_array_equal(classified(session, compiled=path), expected)
        assert kernels_run(session)
    monkeypatch.setattr(contents, "levels_here", lambda: ["x86-64-v2"])
    with (
        pytest.warns(RuntimeWarning, match=r"it is for processors x86-64-v3, aarch64, and this one is"),
        jitree.Session("local-sync", tier="fast") as session,
    ):
        np.testing.assert_array_equal(classified(session, compiled=path), expected)


def test_the_exact_processor_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes(32)
    monkeypatch.setattr(contents, "levels_here", lambda: ["x86-64-v3", "x86-64-v2"])
    for levels, taken in (("x86-64-v2", "x86-64-v3", ""), ""), (("x86-64-v2", "x86-64-v3"), "x86-64-v3"):
        files = {level: {key: b"made for " + level.encode()} for level in levels}
        path = tmp_path / "some.jit"
        path.write_bytes(packed("1", [], files))
        found = Pack(str(path))
        at, size = found._images[key]
        assert path.read_bytes()[at : at + size] == b"made for " + taken.encode()


def test_another_processor_of_the_same_name(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts give one name to several, and newer systems state more of the same one."""
    monkeypatch.setattr(contents, "processor_key", lambda: bytes(32))
    monkeypatch.setattr(contents, "levels_here", lambda: ["x86-64-v3"])
    with pytest.raises(Mismatch, match=r"and this one is another of that name \(with `--processor=`"):
        Pack(str(made))


def changed(data: bytes, kind: str) -> bytes:
    first = contents._HEADER.size + contents._HEADER.unpack_from(data)[-1]
    return {
        "empty": b"",
        "foreign": (ROOT / "examples" / "digits" / "digits.vmvx.vmfb").read_bytes(),
        "text": b"hello\n" * 100,
        "short head": data[:20],
        "cut in the index": data[:200],
        "cut in an image": data[:-100],
        "index": data[:300] + bytes([data[300] ^ 1]) + data[301:],
        "size of the index": data[:40] + b"\xff\xff\xff\xff" + data[44:],
        "images": data[:first] + bytes(byte ^ 1 for byte in data[first:]),  # others may be in the process
    }[kind]


REASONS = {
    "empty": "no machine code that `jitree cache pack` has made",
    "foreign": "no machine code that `jitree cache pack` has made",
    "text": "no machine code that `jitree cache pack` has made",
    "short head": "cut off",
    "cut in the index": "damaged, cut off",
    "cut in an image": "cut off",
    "index": "damaged, cut off",
    "size of the index": "damaged, cut off",
    "images": "a part of it is damaged",
}


@pytest.mark.parametrize("kind", REASONS)
def test_damage_is_a_line_and_the_usual_way(made: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "damaged.jit"
    path.write_bytes(changed(made.read_bytes(), kind))
    refused(path, REASONS[kind])


def refused(path: Path, reason: str, **options: object) -> None:
    """The result is there, and one warning that says why a pack is not used, also of several parts."""
    with warnings.catch_warnings(record=True) as caught, jitree.Session("local-sync", tier="auto") as session:
        warnings.simplefilter("always")
        assert classified(session, compiled=path, **options).shape == (10,)
    ((text, file),) = [(str(w.message), w.filename) for w in caught if str(path) in str(w.message)]
    assert file == __file__, "it is the user's line that calls"
    assert reason in text and "\n" not in text and "`jitree cache pack` makes that anew" in text


@pytest.mark.parametrize("position", range(0, 3000, 97))
def test_no_byte_of_the_head_matters_unseen(made: Path, tmp_path: Path, position: int) -> None:
    """Any that is changed is found, or belongs to an image, which has a digest of its own."""
    data = bytearray(made.read_bytes())
    start = len(data) - sum(size for _, size in Pack(str(made))._images.values())
    data[position % start] ^= 0x55
    path = tmp_path / "damaged.jit"
    path.write_bytes(data)
    with pytest.raises(Mismatch):
        Pack(str(path))


def test_lists_that_make_no_sense(tmp_path: Path) -> None:
    """Their digest fits: nothing but a program writes them."""
    stamp = contents.text("1", [], []).decode()
    here = processor_key().hex()
    first = f"{stamp}\nprocessor {here} {bytes(32).hex()} x"
    for index in (
        "stamp", f"{stamp}\nimage {bytes(32).hex()} 0 1", f"{first}\nimage zz 0 1", f"{first}\nimage 00 -1 1",
        f"{first}\nimage 00 0 {1 << 70}", f"{first}\nimage 00 x 1", f"{first}\nimage 00 1",
        f"{stamp}\nprogram -", "\n\n", "stamp  ", "stamp \xff", f"{first}\xff",
    ):  # fmt: skip
        path = tmp_path / "odd.jit"
        text = index.encode("latin-1")  # some are no UTF-8
        path.write_bytes(
            contents._HEADER.pack(contents._MAGIC, hashed((contents._FORMAT, text)), len(text)) + text
        )
        with pytest.raises(Mismatch):
            Pack(str(path))


def test_a_sparse_file_and_what_is_no_file(tmp_path: Path, made: Path) -> None:
    sparse = tmp_path / "sparse.jit"
    shutil.copy(made, sparse)
    os.truncate(sparse, 64 << 30)
    refused(sparse, "packs have")
    holes = tmp_path / "holes.jit"
    holes.touch()
    os.truncate(holes, 1 << 20)
    refused(holes, "no machine code that")
    pipe = tmp_path / "pipe.jit"
    os.mkfifo(pipe)
    refused(pipe, "it is not a file")
    refused(tmp_path, "it is not a file")
    refused(Path("/dev/zero"), "it is not a file")


def test_another_program(made: Path, no_builder: list[str]) -> None:
    with (
        pytest.warns(RuntimeWarning, match="it has none of module 'module' with arithmetic 'fused'"),
        jitree.Session("local-sync", tier="fast") as session,
    ):
        session.load(ARITHMETIC, compiled=made)
        assert not image.packs


def test_one_of_two_programs(made: Path, no_builder: list[str]) -> None:
    echo = ROOT / "tests" / "data" / "programs" / "echo.vmfb"
    with (
        pytest.warns(RuntimeWarning, match="it has none of module 'module' with arithmetic 'fused'"),
        jitree.Session("local-sync", tier="auto") as session,
    ):
        digits, _ = session.link(DIGITS, echo, compiled=made)
        assert np.asarray(digits.classify(ZEROS)).shape == (10,)
        assert kernels_run(session)


def test_another_arithmetic(made: Path, tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match="with arithmetic 'strict'"),
        jitree.Session("local-sync", tier="fast", arithmetic="strict") as session,
    ):
        classified(session, compiled=made)


def test_another_version(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "build_stamp", lambda: b"of tomorrow")
    with pytest.raises(Mismatch, match=f"jitree {jitree.__version__} has made it, and this one makes other"):
        Pack(str(made))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with jitree.Session("local-sync", tier="fast") as session:
        with pytest.raises(NotFoundError, match=r"compiled: no such file: 'nowhere.jit'"):
            session.load(DIGITS, compiled="nowhere.jit")
        with pytest.raises(UnavailableError, match=r"compiled: .*cannot be read: "):
            session.load(DIGITS, compiled=DIGITS / "below")
        with pytest.raises(InvalidArgumentError, match="compiled"):
            session.load(DIGITS, compiled="a\0b")
        with pytest.raises(InvalidArgumentError, match="compiled: expected the path of a file"):
            session.load(DIGITS, compiled=7)  # type: ignore[call-overload]
        assert not session.modules


@pytest.mark.parametrize("options", [{"sandbox": True}, {"sandbox": True, "limits": jitree.Limits(time=60)}])
def test_a_sandbox_refuses_it(made: Path, options: dict[str, object]) -> None:
    with jitree.Session("local-sync", **options) as session:  # type: ignore[arg-type]
        for load in (session.load, session.link):
            with pytest.raises(PermissionDeniedError, match=r"compiled: .* a sandbox runs none"):
                load(DIGITS, compiled=made)
        assert not session.modules


def test_a_process_of_a_sandbox_refuses_it(made: Path) -> None:
    with jitree.Session("local-sync", sandbox="process") as session:
        for load in (session.load, session.link):
            with pytest.raises(PermissionDeniedError, match=r"compiled: .* a sandbox runs none"):
                load(DIGITS, compiled=made)
    outcome = command("run", f"--module={DIGITS}", "--sandbox", f"--compiled={made}", "--input=8x8xf32=0")
    assert outcome.code == 1 and "PERMISSION_DENIED" in outcome.stderr


def test_a_sandbox_takes_no_code_that_another_session_was_given(made: Path, no_builder: list[str]) -> None:
    with jitree.Session("local-sync", tier="native") as trusting:
        expected = classified(trusting, compiled=made)
        no_builder.clear()
        with jitree.Session("local-sync", tier="auto", sandbox=True) as session:
            np.testing.assert_array_equal(classified(session), expected)
            providers = [item for key, item in list(image._providers.items()) if key[3] is not None]
            programs = [item for item in providers if item.recipe.data]
            assert programs and all(item.image is None for item in programs)


def test_the_command_line_takes_it(made: Path, folder: Path) -> None:
    flags = "--device=local-sync", f"--module={DIGITS}", f"--compiled={made}", "--input=8x8xf32=0"
    outcome = command("run", *flags, tier="native")
    assert outcome.code == 0 and "10xf32" in outcome.stdout, outcome.stderr
    assert "kernels of executable" not in outcome.stderr
    outcome = command("benchmark", *flags, "--function=classify", "--benchmark_min_time=1x", tier="native")
    assert outcome.code == 0, outcome.stderr
    assert "kernels of executable" not in outcome.stderr
    assert not list(folder.glob("vmvx*"))


def test_the_command_line_says_in_one_line_why_it_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "x.jit"
    path.write_bytes(b"hello")
    flags = "--device=local-sync", f"--module={DIGITS}", f"--compiled={path}", "--input=8x8xf32=0"
    outcome = jitree_process("run", *flags, tier="fast")
    assert outcome.code == 0 and "10xf32" in outcome.stdout
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"jitree: machine code of '{path}' is not used: ")


def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ([], [DIGITS], ["-o", "x.jit"]):
        outcome = command("cache", "pack", *arguments)
        assert outcome.code == 1 and "name modules and a file" in outcome.stderr
    outcome = command("cache", "pack", DIGITS, "-o", tmp_path / "x.jit", "--processor=z80")
    assert outcome.code == 1 and "there is no 'z80'; there are x86-64-v4" in outcome.stderr
    outcome = command("cache", "pack", tmp_path / "none.vmfb", "-o", tmp_path / "x.jit")
    assert outcome.code == 1 and "NOT_FOUND" in outcome.stderr
    assert not list(tmp_path.glob("*.jit*"))


def test_a_builder_that_fails_leaves_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder goes away; the file that the message names stays, where it can be written."""
    failing = Recipe("failing", "a failure", "tests.codegen.image_texts:failing_texts", 1.0)
    monkeypatch.setattr(cache, "recipes_of", lambda module, arithmetic: [failing])
    outcome = command("cache", "pack", DIGITS, "-o", tmp_path / "x.jit")
    log = tmp_path / "x.jit.log"
    assert outcome.code == 1 and f"no text today (whole output: {log})" in outcome.stderr
    assert "Traceback" in log.read_text()
    (tmp_path / "y.jit.log").mkdir()
    outcome = command("cache", "pack", DIGITS, "-o", tmp_path / "y.jit")
    assert outcome.code == 1 and outcome.stderr.rstrip().endswith("no text today")


def test_what_cannot_be_written(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known before anything is built, which takes a while."""
    monkeypatch.setattr(cache, "_built", lambda recipes, level, log: pytest.fail("it builds"))
    outcome = command("cache", "pack", DIGITS, "-o", tmp_path / "nowhere" / "x.jit")
    assert outcome.code == 1 and "UNAVAILABLE" in outcome.stderr and "cannot write" in outcome.stderr
    (tmp_path / "folder.jit").mkdir()
    outcome = command("cache", "pack", DIGITS, "-o", tmp_path / "folder.jit")
    assert outcome.code == 1 and "cannot write" in outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"folder.jit"}


def test_a_bound_of_the_cache_bounds_no_pack(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITREE_CACHE_SIZE", "1")
    path = tmp_path / "x.jit"
    outcome = command("cache", "pack", DIGITS, "-o", path)
    assert outcome.code == 0, outcome.stderr
    assert Pack(str(path))._images.keys() == Pack(str(made))._images.keys()


def test_builders_have_ended_before_their_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write what building has taken when the last image is there."""
    monkeypatch.setenv("JITREE_TEST_BUILDS", str(tmp_path / "builds"))
    recipe = Recipe("late", "built late", "tests.codegen.image_texts:late_texts", 1.0, (b"late",))
    assert len(cache._built([recipe], "", "")) == 1
    assert (tmp_path / "builds").read_bytes() == b"late"


def test_an_interrupt_ends_builders_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would go on, and make their folder again when it has gone."""
    builders = list[BuilderThread]()

    def interrupted(images: batch.ImageBatch) -> None:
        builders.extend(item.builder for item in images.providers if item.builder is not None)
        while builders[0].is_alive():  # it starts the process
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(batch.ImageBatch, "wait", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JITREE_TEST_GO", str(tmp_path / "go"))
    with pytest.raises(KeyboardInterrupt):
        cache._built([Recipe("waiting", "waits", "tests.codegen.image_texts:waiting_texts", 1.0)], "", "")
    (builder,) = builders
    assert builder.has_ended() and not list(tmp_path.glob("jitree-pack-*"))
