"""Checks of settings that one --mode uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strategies.common.errors import UsageError
from trainers.config.run import LARGEST_SEED

if TYPE_CHECKING:
    from trainers.config.config import Config


def check_evaluation(config: Config) -> None:
    """Refuses an evaluation without a run."""
    if config.run.mode == "evaluate" and config.run.run_dir is None:
        raise UsageError(
            "--mode=evaluate needs --run_dir: give the folder of a finished run."
        )


def check_resume(config: Config) -> None:
    """Refuses to continue a run without a folder."""
    run = config.run
    if run.mode == "train" and run.resume == "auto" and run.run_dir is None:
        raise UsageError(
            "--resume=auto needs --run_dir: give the folder of the run to continue."
        )


def check_comparison(config: Config) -> None:
    """Refuses a comparison, verification or prediction of nothing."""
    mode, strategies = config.run.mode, config.comparison.strategies
    others = config.comparison.arm or config.comparison.runs
    if mode == "compare" and not (strategies or others):
        raise UsageError(
            "--mode=compare needs something to compare: give --strategies, --arm or "
            "--runs."
        )
    if mode in ("verify", "predict") and not strategies:
        raise UsageError(
            f"--mode={mode} needs something to {mode}: give --strategies, such as "
            "--strategies=tower,mirrored."
        )
    if (
        config.comparison.target_accuracy is not None
        and config.comparison.runs is None
        and config.report.eval_every_steps is None
    ):
        raise UsageError(
            "--set=comparison.target_accuracy needs the accuracy during the training, "
            "and --eval_every_steps=none leaves it out: give a number of steps."
        )
    # `--strategy` carries the strategy that the shared settings were checked with, so
    # it must be one of the compared strategies.
    strategy = config.strategy.strategy
    if strategies and strategy not in strategies:
        raise UsageError(
            f"--strategy={strategy} is not one of --strategies={','.join(strategies)}: "
            "leave --strategy out, or add it there."
        )


def check_backup_workers(config: Config) -> None:
    """Refuses updates that leave gradients out where their time is divided."""
    backups, mode = config.strategy.backup_workers, config.run.mode
    if backups and mode in ("explain", "predict"):
        raise UsageError(
            f"--backup_workers={backups} does not fit --mode={mode}, whose times are "
            "of updates that wait for every worker: leave it out."
        )


def check_explanation(config: Config) -> None:
    """Refuses settings under which a step has no phases."""
    if config.run.mode != "explain":
        return
    if config.strategy.averaged == "losses":
        raise UsageError(
            "--average=losses does not fit --mode=explain: no replica has gradients of "
            "its own, whose time could be told from the sum's; leave it out."
        )
    if config.model.keras_fit:
        raise UsageError(
            "--set=model.keras_fit=true does not fit --mode=explain: the steps are "
            "Keras's and have no phases; leave it out."
        )


def check_seeds(config: Config) -> None:
    """Refuses a comparison whose last seed is out of range."""
    seed, seeds = config.run.seed, config.comparison.seeds
    last = seed + seeds - 1
    starts_runs = config.run.mode == "compare" and config.comparison.runs is None
    if starts_runs and last > LARGEST_SEED:
        raise UsageError(
            f"--seed={seed} and --seeds={seeds} end at seed {last}, which is out of "
            f"range: the last must be at most {LARGEST_SEED}; lower one of them."
        )
