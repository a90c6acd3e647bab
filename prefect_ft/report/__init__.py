"""The report of a run, from its journals alone: read, folded into a story, and shown in a terminal, in HTML or as SVG.

`read` is the only module that opens files; `story` and `advice` are folds, `words` and the renderers functions
of their results. `html` is not imported with the others: it needs Jinja2.
"""

from prefect_ft.report.read import read_phase, read_story
from prefect_ft.report.story import Story
from prefect_ft.report.timeline import timeline

__all__ = ["Story", "read_phase", "read_story", "timeline"]
