"""Pages that are made from the code when the documentation is built: configs, commands, mistakes."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs import command_reference, config_reference, mistakes_page

MADE = {
    "reference/commands.md": command_reference.text,
    "reference/config.md": config_reference.text,
    "mistakes.md": mistakes_page.text,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; called by MkDocs."""
    for path, text in MADE.items():
        files.append(File.generated(config, path, content=text()))
    return files
