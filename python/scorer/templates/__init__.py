"""Templates of projects, which ``scorer new`` copies: one folder for each kind.

The files of a template are copied with the name of the project in the place of ``@NAME@``, and of ``NAME`` in
their paths. A file ``dot.x`` becomes ``.x``. Files of the folder ``common`` are part of every template.
"""
