"""Everything about finished runs: statistics, figures, a study's page, a checkpoint's card.

It reads run folders only, and meets models through their files and Auto classes.
"""

from .card import render_card, write_card
from .report import RESULT_COLUMNS, TIMING_COLUMNS, ReportPaths, write_report
from .runs import Study, read_study

__all__ = [
    "RESULT_COLUMNS",
    "TIMING_COLUMNS",
    "ReportPaths",
    "Study",
    "read_study",
    "render_card",
    "write_card",
    "write_report",
]
