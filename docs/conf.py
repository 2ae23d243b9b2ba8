"""How Sphinx makes the documents and the docstrings into a site: `make docs`."""

import re
import warnings
from importlib import import_module
from pathlib import Path

from docutils import nodes
from sphinx.parsers import Parser

import zmqps

ROOT = Path(__file__).parents[1]
#: Languages of the files that documents link to.
LANGUAGES = {".conf": "ini", ".py": "python", ".sbatch": "bash", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(path for top in ("docs", "examples", "bench", "deploy") for path in ROOT.glob(f"{top}/**/*.md")),
]
LINKED = [
    path
    for document in DOCUMENTS
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text())
    if (path := (document.parent / target).resolve()).suffix in {*LANGUAGES, ".ipynb"} and path.exists()
]

project = "zmqps"
author = copyright = "The zmqps authors"
version = release = zmqps.__version__

# The site has the folders of the repository, so that a link between two documents leads to the same place in both.
root_doc = "docs/index"
include_patterns = sorted({str(path.relative_to(ROOT)) for path in [*DOCUMENTS, *LINKED]})
exclude_patterns = [".*", "build", "runs", "tests"]
extensions = [
    "myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinxcontrib.mermaid",
]  # fmt: skip
suppress_warnings = ["misc.highlighting_failure"]  # code in the documents leaves things out with an ellipsis
templates_path = ["site"]

myst_heading_anchors = 4  # as GitHub makes them
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["jax", "keras", "optax", "ray", "torch"]
autodoc_typehints_format = "short"
autosummary_generate = False
numpydoc_show_class_members = False
python_maximum_signature_line_length = 88
toc_object_entries = False
warnings.filterwarnings("ignore", "Unknown section What To Do Next")  # of the errors; see keep_advice

html_theme = "furo"
pygments_style = "friendly"
html_title = f"zmqps {release}"
html_static_path = ["site/style.css"]
html_css_files = ["style.css"]
html_additional_pages = {"index": "forward.html"}
html_copy_source = False

#: What looks like a name of zmqps in a docstring. The rest is code, an argument, or documented by another project.
OURS = re.compile(r"(?!zmqps\.optimizers)(zmqps\.|[A-Z]\w*[a-z])[\w.]*")  # but for the group of entry points
#: Public names of classes and functions, by the names that these have where they are defined.
PUBLIC = {
    f"{thing.__module__}.{thing.__qualname__}": f"{module.__name__}.{name}"
    for module in [*(import_module(f"zmqps.{name}") for name in zmqps.__all__ if name in zmqps._MODULES), zmqps]
    for name in getattr(module, "__all__", ())
    if hasattr(thing := getattr(module, name), "__qualname__")
}


class Source(Parser):
    """Shows a file as it is."""

    supported = ("source",)

    def parse(self, inputstring, document):
        env = document.settings.env
        path = Path(env.doc2path(env.docname))
        section = nodes.section("", nodes.title(text=path.name), ids=["source"])
        section += nodes.literal_block(inputstring, inputstring, language=LANGUAGES[path.suffix])
        document += section
        env.metadata[env.docname]["orphan"] = True


def resolve(app, env, node, shown):
    """Let a name in a docstring or signature lead to the public thing that it means.

    None: there is none, and the build fails. The types of signatures may be internal, then nothing is linked.
    """
    if node.get("refdomain") != "py":
        return None
    target, python = node["reftarget"], env.domains["py"]
    name = PUBLIC.get(target, target)
    if name not in python.objects and OURS.fullmatch(target):
        name = min((known for known in python.objects if known.endswith(f".{target}")), key=len, default="")
    if name in python.objects:
        return python.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, shown)
    return None if node["reftype"] == "obj" and OURS.fullmatch(target) else shown


def adapt(app, docname, source):
    """Turn what GitHub shows in its own way into the theme's: pictures in the dark, and blocks that are not code."""
    if Path(app.env.doc2path(docname)).suffix == ".md":
        text = re.sub(
            r'<picture>\s*<source [^>]*srcset="(.*?)">\s*<img alt="(.*?)" src="(.*?)">\s*</picture>',
            "```{image} \\3\n:alt: \\2\n:class: only-light\n```\n```{image} \\1\n:alt: \\2\n:class: only-dark\n```",
            source[0],
        )
        blocks = re.compile(r"^( *```)([^\n]*)(\n.*?^ *```)$", re.MULTILINE | re.DOTALL)
        source[0] = blocks.sub(lambda block: block[1] + (block[2] or "text") + block[3], text)


def keep_advice(app, what, name, thing, options, lines):
    """Make the section of errors that numpydoc does not know a paragraph with a heading."""
    lines[:] = re.sub(r"What to do next\n-+\n", ".. rubric:: What to do next\n\n", "\n".join(lines)).split("\n")


def setup(app):
    for suffix in LANGUAGES:
        app.add_source_suffix(suffix, "source")
    app.add_source_parser(Source)
    app.connect("missing-reference", resolve)
    app.connect("source-read", adapt)
    app.connect("autodoc-process-docstring", keep_advice, priority=400)  # before numpydoc, at 500
