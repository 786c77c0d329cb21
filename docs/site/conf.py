# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the site. docs/decisions/0018 says why Sphinx and MyST."""

import os

project = "vmm"
author = "The vmm authors"
copyright = "2026, The vmm authors. Licence: Apache-2.0"  # pylint: disable=redefined-builtin
version = release = os.environ.get("SITE_VERSION", "")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as forges make them: page.md#heading
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
highlight_language = "text"
# A sample may show text that no lexer parses; the samples are compiled by tests.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

html_theme = "theme"
html_theme_path = ["."]
html_title = f"vmm {version}".strip()
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it would fetch pages, which files may not: see excerpts.js
html_search_scorer = os.path.join(os.path.dirname(__file__), "scorer.js")
html_use_index = False  # reference/names.md is the index
pygments_style = "none"  # the theme's own colours, for light and dark
