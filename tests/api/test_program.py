"""Programs that travel: equal by contents, small as pickles, opened once a process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Program
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    UnimplementedError,
)
from tests.api.programs import ARITHMETIC, LIBRARY, PROGRAM, PROGRAMS
from tests.params.archives import write_irpa

X = np.arange(4, dtype=np.float32)
EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = PROGRAMS / "shared.vmfb"
LINEAR = PROGRAMS / "parameters.vmfb"
START_METHODS = ["spawn", "forkserver"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(ARITHMETIC, tmp_path / "model.vmfb"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    w, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
    return write_irpa(tmp_path / "model.irpa", {"w": w, "b": b})


def local(*sources: Any, **options: Any) -> Program:
    return Program(*sources, device="local-sync", **options)


def there_and_back(value: Any) -> Any:
    data = pickle.dumps(value)
    assert len(data) <= 1024
    return pickle.loads(data)


# -- values -----------------------------------------------------------------------------------------------


def test_programs_are_values(path: Path) -> None:
    program = local(path)
    for same in (local(str(path)), local(ARITHMETIC), local(path.read_bytes()), there_and_back(program)):
        assert same == program and hash(same) == hash(program) and same.fingerprint == program.fingerprint
    others = (local(LIBRARY), Program(path), Program(path, device="local-task"), local(path, tier="plain"))
    assert len({program, *others, local(path, tier=None)}) == 5
    with pytest.raises(AttributeError):
        program.device = "cuda"
    with pytest.raises(AttributeError):
        del program.device
    assert str(path) in repr(program)


def test_a_program_of_many_archives_is_small(path: Path, tmp_path: Path) -> None:
    """As a model that is sharded for eight devices has them; each is found again, under its scope."""
    numbers = {"w": np.ones(3, np.float32)}
    ranks = [write_irpa(tmp_path / f"model.rank{rank}.irpa", numbers) for rank in range(8)]
    program = local(path, parameters=[f"model={archive}" for archive in ranks])
    again = there_and_back(program)
    assert again == program and again.parameters == program.parameters
    assert there_and_back(again.on("null")).parameters == program.parameters


def test_fingerprints(path: Path, archive: Path, tmp_path: Path) -> None:
    assert local(path).fingerprint == jitree.inspect(path).fingerprint
    needing = Program(path, parameters=f"model={archive}")
    assert needing.fingerprint.startswith(local(path).fingerprint + "+")
    changed = write_irpa(tmp_path / "other.irpa", {"w": np.zeros(12, np.float32)})
    assert Program(path, parameters=[f"model={changed}"]).fingerprint != needing.fingerprint
    assert Program(path, parameters={"model": archive}) == needing == there_and_back(needing)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((), {}, InvalidArgumentError, "no module was given"),
        (("/nowhere.vmfb",), {}, NotFoundError, "/nowhere"),
        ((b"nothing",), {}, InvalidArgumentError, "FlatBuffer"),
        ((ARITHMETIC,), {"colour": 1}, InvalidArgumentError, "no session has the option colour; there are"),
        ((ARITHMETIC,), {"instance": 1}, InvalidArgumentError, "no session has the option instance"),
        ((ARITHMETIC,), {"device": 1}, InvalidArgumentError, "device: expected a list of URIs"),
        ((ARITHMETIC,), {"parameters": {"w": X}}, InvalidArgumentError, "archives by path"),
        ((ARITHMETIC,), {"parameters": [{"w": X}]}, InvalidArgumentError, "archives by path"),
        ((ARITHMETIC,), {"parameters": "/nowhere.irpa"}, NotFoundError, "/nowhere"),
        ((ARITHMETIC,), {"builtin_modules": {"hal": []}}, InvalidArgumentError, "can change"),
        ((ARITHMETIC,), {"parameters": [("a", "b", "c")]}, InvalidArgumentError, "with archives by path"),
        ((ARITHMETIC,), {"parameters": {"a=b": "c"}}, InvalidArgumentError, "a scope without '='"),
    ],
)
def test_what_is_no_program(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[StatusError], match: str
) -> None:
    with pytest.raises(error, match=match):
        Program(*arguments, **options)


def test_devices_are_named() -> None:
    with jitree.Session("local-sync") as session, pytest.raises(InvalidArgumentError, match="name it, as"):
        Program(ARITHMETIC, device=session.device)  # type: ignore[arg-type]


def test_bytes_travel_when_asked_for(path: Path) -> None:
    size = path.stat().st_size
    assert len(pickle.dumps(local(path))) < 300 < size < len(pickle.dumps(local(path, embed=True)))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(local(path.read_bytes()), 5, buffer_callback=buffers.append)
    assert len(data) < 300 and len(buffers) == 1
    embedded = pickle.loads(pickle.dumps(local(path, embed=True)))
    beside = pickle.loads(data, buffers=buffers)
    path.unlink()
    for program in (embedded, beside):
        with program.open() as session:
            assert np.array_equal(session.modules["arithmetic"].add(X, X), 2 * X)


# -- opening ----------------------------------------------------------------------------------------------


def test_a_program_is_opened_once(path: Path) -> None:
    program = local(path, tier="plain")
    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(lambda _: program.open(), range(16))
    assert all(session is first for session in others)
    assert there_and_back(program).open() is first is local(ARITHMETIC, tier="plain").open()
    assert Program(path, device="local-task", tier="plain").open() is not first
    first.close()
    with program.open() as second:
        assert second is not first and not second.closed


def test_other_bytes_are_refused(path: Path, archive: Path) -> None:
    data = pickle.dumps(Program(path, device="local-sync", parameters=f"model={archive}", tier="plain"))
    whole, weights = path.read_bytes(), archive.read_bytes()
    for file, changed in ((path, LIBRARY.read_bytes()), (archive, weights[:-1] + b"\1")):
        file.write_bytes(changed)
        with pytest.raises(FailedPreconditionError, match=f"'{file}' is not the file that"):
            pickle.loads(data).open()
        file.write_bytes(whole if file == path else weights)
    path.unlink()
    with pytest.raises(NotFoundError, match="put them there on each machine, or make the program with embed"):
        pickle.loads(data).open()
    path.write_bytes(whole)
    with pickle.loads(data).open() as session:
        assert list(session.modules) == ["arithmetic"]


def test_large_files_are_known_again_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jitree.api import program_files

    monkeypatch.setattr(program_files, "_STAMPED_SIZE", 64)
    monkeypatch.setattr(program_files, "_SETTLED_SECONDS", -1.0)
    path = write_irpa(tmp_path / "m.irpa", {"w": X})
    file = program_files.parameter_file("", str(path))
    with monkeypatch.context() as patch:
        patch.setattr(program_files, "digest_of", None)  # is not called
        assert pickle.loads(pickle.dumps(file)).contents() == path.read_bytes()
    os.utime(path)
    file.contents()
    path.write_bytes(path.read_bytes() + bytes(4))
    with pytest.raises(FailedPreconditionError):
        file.contents()


def test_parts_of_huge_archives_are_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitree.api import program_files

    monkeypatch.setattr(program_files, "_WHOLE_SIZE", 100)
    monkeypatch.setattr(program_files, "_SAMPLE_SIZE", 2)
    data = bytearray(10_000)
    found = {program_files.digest_of(memoryview(bytes(data)), True)}
    for change in (0, 1, len(data) - 1):
        data[change] ^= 1
        found.add(program_files.digest_of(memoryview(bytes(data)), True))
    found.add(program_files.digest_of(memoryview(bytes(data))[:-1], True))
    found.add(program_files.digest_of(memoryview(bytes(data))))
    assert len(found) == 6


def test_several_modules_and_options() -> None:
    program = local(PROGRAM, LIBRARY, tier="plain", check_finite=True, builtin_modules=["hal"])
    with there_and_back(program).open() as session:
        assert set(session.modules) == {"program", "library"} and session.tier == "plain"
        assert session.finite_check is not None


@pytest.mark.parametrize("sandbox", [True, "process"])
def test_sandboxes(sandbox: bool | str) -> None:
    program = local(EXAMPLES / "digits" / "digits.vmvx.vmfb", sandbox=sandbox, limits=jitree.Limits(time=60))
    with there_and_back(program).open() as session:
        image = np.zeros((8, 8), np.float32)
        assert np.asarray(next(iter(session.modules.values())).classify(image)).shape == (10,)


def test_modules_of_python_files() -> None:
    folder = EXAMPLES / "custom_module"
    program = local(f"{folder}/activation.py", f"{folder}/program.vmfb", tier="plain")
    with there_and_back(program).open() as session:
        assert there_and_back(session.modules["program"]).session is session
    with jitree.Session("local-sync") as session:
        session.load(f"{folder}/activation.py", f"{folder}/program.vmfb")
        with pytest.raises(UnimplementedError, match="make a Program with the file that makes it"):
            pickle.dumps(session)
    with pytest.raises(InvalidArgumentError, match="embed takes compiled modules"):
        local(f"{folder}/activation.py", embed=True)


def test_a_program_that_opens_itself(tmp_path: Path) -> None:
    """An error, not a thread that waits for itself; the next call opens it again."""
    source = tmp_path / "host.py"
    source.write_text(
        "import jitree\n"
        "def create():\n"
        "    jitree.Program(__file__, device='local-sync').open()\n"
        "    return jitree.CustomModule('host')\n"
    )
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="opens it itself"):
            local(str(source)).open()


def test_files_that_change_while_a_program_is_opened(archive: Path, tmp_path: Path) -> None:
    source, copy = tmp_path / "host.py", tmp_path / "other.irpa"
    copy.write_bytes(archive.read_bytes()[:-1] + b"\1")
    source.write_text(
        "import jitree, os\n"
        "def create():\n"
        f"    os.path.exists({str(copy)!r}) and os.replace({str(copy)!r}, {str(archive)!r})\n"
        "    return jitree.CustomModule('host')\n"
    )
    program = local(str(source), parameters={"model": archive})
    with pytest.raises(FailedPreconditionError, match="a file was changed meanwhile"):
        program.open()
    with pytest.raises(FailedPreconditionError, match="is not the file that"):
        program.open()


def test_what_can_be_read_once_only_is_no_file_of_a_program(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        with pytest.raises(InvalidArgumentError, match="no regular file"):
            Program(path)
        with pytest.raises(InvalidArgumentError, match="no regular file"):
            Program(ARITHMETIC, parameters=[path])


# -- what sessions, modules and functions pickle as -------------------------------------------------------


def test_pickles_of_what_a_program_has_open(path: Path) -> None:
    program = local(path, tier="plain")
    with program.open() as session:
        module = session.modules["arithmetic"]
        assert there_and_back(session) is session
        assert there_and_back(module).session is session
        assert there_and_back(module.add) is module.add
        assert there_and_back(module.add.to("numpy"))(X, X).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("given", [ARITHMETIC, ARITHMETIC.read_bytes()], ids=["path", "bytes"])
def test_sessions_pickle_as_what_made_them(given: Any) -> None:
    with jitree.Session("local-sync", tier="plain", check_finite=True) as session:
        module = session.load(given)
        again = pickle.loads(pickle.dumps(module.add))
        with again.session as other:
            assert other is not session and other.tier == "plain" and other.finite_check is not None
            assert other.device.uri == session.device.uri and np.array_equal(again(X, X), 2 * X)
            assert pickle.loads(pickle.dumps(module)).session is other
            session.load(LIBRARY)
            third = pickle.loads(pickle.dumps(session))
            assert third is not other and set(third.modules) == {"arithmetic", "library"}
            third.close()
    with pytest.raises(FailedPreconditionError, match="has been closed"):
        pickle.dumps(module.add)


def test_a_session_with_a_device_object_and_parameters(archive: Path, tmp_path: Path) -> None:
    scale = write_irpa(tmp_path / "scale.irpa", {"scale": np.full(3, 2, np.float32)})
    device = jitree.Instance.default().create_device("local-sync")
    with jitree.Session(device, parameters=[f"model={archive}", str(scale)], tier="plain") as session:
        x = np.ones((2, 4), np.float32)
        function = session.load(LINEAR).linear
        again = pickle.loads(pickle.dumps(function))
        with again.session:
            assert np.array_equal(again(x), function(x))


def test_what_cannot_be_made_again(path: Path, tmp_path: Path) -> None:
    with jitree.Session("local-sync", tier="plain") as session:
        with pytest.raises(UnimplementedError, match="without modules"):
            pickle.dumps(session)
        module = session.load(path)
        path.write_bytes(LIBRARY.read_bytes())
        with pytest.raises(FailedPreconditionError, match="has changed since module 'arithmetic' was loaded"):
            pickle.dumps(module)
        path.unlink()
        with pytest.raises(FailedPreconditionError, match="which is not there any more"):
            pickle.dumps(module.add)
    weights = {"model": {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}}
    weights["scale"] = np.ones(3, np.float32)  # type: ignore[assignment]
    for parameters in (weights, [weights], iter([weights])):
        with jitree.Session("local-sync", parameters=parameters, tier="plain") as session:
            module = session.load(LINEAR)
            with pytest.raises(InvalidArgumentError, match="parameters: "):
                pickle.dumps(module.linear)
    with jitree.Session("local-sync", instance=jitree.Instance()) as session:
        module = session.load(ARITHMETIC)
        with pytest.raises(UnimplementedError, match="not the default one"):
            pickle.dumps(module)


# -- in other processes -----------------------------------------------------------------------------------


def opened_twice(program: Program) -> tuple[int, bool]:
    return os.getpid(), program.open() is program.open()


def add(program: Program, value: Any) -> Any:
    return np.asarray(program.open().modules["arithmetic"].add(value, value))


@pytest.mark.parametrize("method", START_METHODS)
def test_pools_of_processes(method: str, path: Path) -> None:
    program = local(path, tier="plain")
    function = jitree.load(path, device="local-sync", tier="plain").add
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert all(np.array_equal(made, 2 * X) for made in pool.starmap(function, [(X, X)] * 3))
        process, same = pool.apply(opened_twice, (program,))
        assert process != os.getpid() and same
        array = function(X, X)
        assert np.array_equal(pool.apply(add, (program, array)), 4 * X)


def test_executors(path: Path) -> None:
    program = local(path, tier="plain")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert np.array_equal(pool.submit(add, program, X).result(60), 2 * X)
        path.unlink()
        path.write_bytes(LIBRARY.read_bytes())
        other = local(path, tier="fast")
        path.write_bytes(ARITHMETIC.read_bytes())
        with pytest.raises(FailedPreconditionError, match="is not the file"):
            pool.submit(add, other, X).result(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork")
def test_a_forked_child_opens_the_program_itself(path: Path) -> None:
    program = local(path, tier="plain")
    with program.open() as session:
        here, there = multiprocessing.get_context("fork").Pipe()
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(program, session, there))
        child.start()
        assert here.poll(60) and here.recv() == (True, [0, 2, 4, 6])
        child.join(60)
        assert child.exitcode == 0 and np.array_equal(session.modules["arithmetic"].add(X, X), 2 * X)


def _in_child(program: Program, session: jitree.Session, answer: Connection) -> None:
    answer.send((program.open() is not session, add(program, X).tolist()))


def test_a_fork_while_another_thread_opens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, entered, leave = (
        local(path, tier="plain", zero_memory=True),
        threading.Event(),
        threading.Event(),
    )
    load = jitree.Session.load

    def slowly(session: jitree.Session, *sources: Any) -> Any:
        entered.set()
        assert leave.wait(60)
        return load(session, *sources)

    monkeypatch.setattr(jitree.Session, "load", slowly)
    opening = threading.Thread(target=program.open)
    opening.start()
    assert entered.wait(60)
    monkeypatch.undo()
    here, there = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(program, None, there))
    child.start()
    answered = here.poll(60) and here.recv()
    leave.set()
    opening.join(60)
    child.join(60)
    assert answered == (True, [0, 2, 4, 6])
    program.open().close()


def memory_of(path: str) -> tuple[int, int]:
    """Bytes of this process: its share of what is mapped of a file, and what is of no file."""
    share, anonymous, inside = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if " " in name:
            inside = line.endswith(path)
        elif name == "Pss" and inside:
            share += int(rest.split()[0]) << 10
        elif name == "Anonymous":
            anonymous += int(rest.split()[0]) << 10
    return share, anonymous


def _use_parameters(program: Program, path: str, pipe: Connection) -> None:
    x = np.ones(4096, np.float32)
    add(local(ARITHMETIC), X)  # what every program takes
    _, before = memory_of(path)
    result = np.asarray(program.open().modules["shared"].sums(x))
    pipe.send(result.sum())
    pipe.recv()  # until all have called it
    share, after = memory_of(path)
    pipe.send((share, after - before))
    pipe.recv()


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the system does not say")
def test_processes_share_the_memory_of_parameters(tmp_path: Path) -> None:
    weights = np.ones((2048, 4096), np.float32)
    path = str(write_irpa(tmp_path / "weights.irpa", {"w": weights}))
    program = local(SHARED, parameters=f"model={path}")
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes = []
        for _ in range(2):
            here, there = context.Pipe()
            child = context.Process(target=_use_parameters, args=(program, path, there), daemon=True)
            child.start()
            stack.callback(child.join, 60)
            stack.callback(here.close)
            pipes.append(here)
        assert all(pipe.poll(120) and pipe.recv() == weights.size for pipe in pipes)
        for pipe in pipes:
            pipe.send(None)
        shares = [pipe.recv() for pipe in pipes if pipe.poll(60)]
        for pipe in pipes:
            pipe.send(None)
    assert sum(share for share, _ in shares) == pytest.approx(weights.nbytes, rel=0.05)
    assert all(own < weights.nbytes / 2 for _, own in shares), "each uses them where they are"


# -- other libraries --------------------------------------------------------------------------------------


def test_joblib(path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    function = jitree.load(path, device="local-sync", tier="plain").add
    made = joblib.Parallel(n_jobs=2)(joblib.delayed(function)(X, X + number) for number in range(4))
    assert [array.tolist() for array in made] == [(2 * X + number).tolist() for number in range(4)]


def test_dask(path: Path) -> None:
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    function = jitree.load(path, device="local-sync", tier="plain").add
    tasks = [dask.delayed(function)(X, X + number) for number in range(3)]
    with dask.config.set({"distributed.worker.daemon": True}):
        cluster = distributed.LocalCluster(1, processes=True, threads_per_worker=1, dashboard_address=None)
        with cluster, distributed.Client(cluster) as client:
            made = client.gather(client.compute(tasks), errors="raise")
            assert [list(array) for array in made] == [(2 * X + number).tolist() for number in range(3)]
            assert client.submit(opened_twice, local(path)).result(60)[1]
