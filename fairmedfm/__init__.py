"""Does a medical imaging model work equally well for everyone? Fairness metrics, reports and benchmarks.

`import fairmedfm as fm` loads nothing: a name is looked up in `_EXPORTS` and its module imported at first use."""

__version__ = "0.5.0"

# module -> the names it offers at the top level; the one place to add a public name
_EXPORTS = {
    "core": ("InputError", "FairnessWarning"),
    "metrics": (
        "auc_gap", "worst_group_auc", "accuracy_gap", "bce_gap", "ece_gap", "equal_opportunity_difference", "equalized_odds_score",
        "auc_difference", "equity_scaled_auc", "equalized_odds_difference", "demographic_parity_difference",
        "metric_gap", "group_metric", "performance_scaled_disparity",
    ),
    "masks": ("dice_gap", "worst_group_dice", "dice_std", "dice_skewness", "equity_scaled_dice", "mask_scores", "read_mask"),
    "uncertainty": ("Accumulator",),
    "report": ("evaluate", "evaluate_segmentation", "FairnessReport"),
    "plots": ("roc_by_group", "pr_by_group", "calibration_by_group", "score_histograms", "dice_by_group", "dice_by_size", "trade_off"),
    "paired": ("compare", "ModelComparison"),
    "bench.leaderboard": ("leaderboard",),
    "train.metric": ("FairnessMetric",),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name):
    "A public name, or one of the chapters that hold them, imported when it is first asked for."
    if name not in _HOME and name not in _EXPORTS: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module
    module = import_module(f"{__name__}.{_HOME.get(name, name)}")
    if name in _HOME: globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__(): return sorted({*globals(), *_HOME, *_EXPORTS})
