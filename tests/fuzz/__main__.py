"""``python -m tests.fuzz``: a long campaign, or one case again."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice

from tests.fuzz.campaign import Campaign, Case, cases
from tests.fuzz.mutations import Layout
from tests.fuzz.seeds import seeds

_REPORT_EVERY = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--tiers", default="plain,fast")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (to continue)")
    parser.add_argument("--replay", metavar="SEED:TIER:NUMBER", help="run one case")
    parser.add_argument("--save", metavar="FILE", help="with --replay: write the damaged module")
    arguments = parser.parse_args()
    campaign = Campaign()
    try:
        if arguments.replay:
            case = Case.parse(arguments.replay)
            if arguments.save:
                seed = seeds()[case.seed]
                with open(arguments.save, "wb") as file:
                    file.write(case.data(seed, Layout(seed.data)))
            campaign.run(case)
        else:
            run_for(campaign, arguments.minutes * 60, tuple(arguments.tiers.split(",")), arguments.first)
    finally:
        campaign.close()
    print_report(campaign)
    return 1 if campaign.bugs else 0


def run_for(campaign: Campaign, seconds: float, tiers: tuple[str, ...], first: int) -> None:
    end = time.monotonic() + seconds
    next_report = time.monotonic() + _REPORT_EVERY
    for case in cases(tiers, first):
        if time.monotonic() >= end:
            return
        if time.monotonic() >= next_report:
            next_report += _REPORT_EVERY
            print(f"{campaign.counts.total()} cases, {len(campaign.bugs)} bugs, at {case}", flush=True)
        campaign.run(case)


def print_report(campaign: Campaign) -> None:
    print(f"{campaign.counts.total()} cases")
    for what, count in campaign.counts.most_common():
        print(f"{count:8}  {what}")
    for bug in islice(campaign.bugs, 100):
        print(f"\n{bug.case}\n{bug.what.strip()}")


if __name__ == "__main__":
    sys.exit(main())
