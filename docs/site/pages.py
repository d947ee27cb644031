"""A hook of MkDocs (mkdocs.yml): the site has the pages of the repository at their paths in it.

A link, such as ``docs/install.md`` in README.md or ``../perftests/baselines/jacobi-4xH200.png`` in docs/figures.md, therefore leads to the
same file on the site as in the clone. MkDocs itself takes files from only one folder, which must not be that of mkdocs.yml.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: Files of the site, as patterns relative to the repository.
PATTERNS = ("*.md", "docs/**/*.*", "perftests/baselines/*.png", "perftests/baselines/*.txt")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository. The theme's stay."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Give the first page its whole width. Show the program of a page of the gallery below its text: a browser only saves a .py file."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    program = Path(page.file.abs_src_path or "").with_suffix(".py")
    if not program.exists():
        return markdown
    return f"{markdown}\n\n## {program.name}\n\n```python\n{program.read_text(encoding='utf-8')}```\n"
