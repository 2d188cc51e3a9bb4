"""Pictures of jobs as SVG, drawn by the server: pure functions from values to text.

Nothing here has a colour. Each shape has a class, and the style sheet of the page gives it one, light or dark. No
shape has a `style` attribute, which the content security policy of the pages refuses.
"""

from taskharbor.server.drawing.graph import Graph, Node, graph
from taskharbor.server.drawing.lines import Run, sparkline, strip
from taskharbor.server.drawing.svg import Svg
from taskharbor.server.drawing.timeline import Bar, Mark, Row, timeline

__all__ = ["Bar", "Graph", "Mark", "Node", "Row", "Run", "Svg", "graph", "sparkline", "strip", "timeline"]
