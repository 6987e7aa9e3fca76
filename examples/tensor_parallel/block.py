"""A block of a transformer whose weights are shared out among two devices.

python examples/tensor_parallel/block.py                                    # one process, two devices
python examples/tensor_parallel/block.py --device=cuda://0 --device=cuda://1    # after program.py cuda
torchrun --nproc-per-node=2 examples/tensor_parallel/block.py --members     # two processes; also mpirun, srun
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from model import RANKS, SIZE, TOKENS, archive, reference, save

import jitree
from jitree.hal.groups.rendezvous import environment_provider
from jitree.params import ParameterIndex

HERE = Path(__file__).parent


def of_devices(folder: Path, devices: Sequence[str] = ("local-sync", "local-sync")) -> Any:
    """One process: all archives are of one scope, since the names have the rank. The program travels."""
    parameters = [f"model={archive(folder, rank)}" for rank in range(RANKS)]
    program = jitree.Program(file("devices", devices[0]), device=devices, parameters=parameters)
    return program.open().modules["module"].block


def of_member(folder: Path, rank: int, device: str = "local-sync", provider: Any = None) -> Any:
    """One process of many: it reads the archive of its rank only. ``provider``: see docs/scale.md; None takes
    what started the process."""
    session = jitree.Session(device, parameters=[{"model": names_without_rank(archive(folder, rank), rank)}])
    if provider is not None:
        session.device.replace_channel_provider(provider)
    return session.load(file("members", device)).block


def names_without_rank(path: Path, rank: int) -> ParameterIndex:
    """The program is the same for all members, and so are its names."""
    whole, index = ParameterIndex(), ParameterIndex()
    whole.load(path)
    for entry in whole:
        index.add(replace(entry, key=entry.key.removesuffix(f".shard.{rank}")), str(path))
    return index


def file(name: str, device: str) -> Path:
    return HERE / f"{name}.{'cuda' if device.startswith('cuda') else 'llvm-cpu'}.vmfb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", action="append", help="one for each rank; of a member its own")
    parser.add_argument("--members", action="store_true", help="this process is one of those of a launcher")
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((TOKENS, SIZE), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        if options.members:
            rank, _ = environment_provider().query_default_rank_and_count()
            who = f"member {rank}"
            block = of_member(Path(folder), rank, *(options.device or ())[:1])
        else:
            who = f"{RANKS} devices"
            block = of_devices(Path(folder), options.device or ("local-sync",) * RANKS)
        off = np.abs(np.asarray(block(x)) - reference(x)).max()
    print(f"{who}: the result is that of numpy within {off:.1e}")


if __name__ == "__main__":
    main()
