"""The site: every page of the tree, and a reference of every public name, as HTML that needs no network."""
