"""An assembler of complete modules, for tests.

>>> from tests.assembler import Assembler
>>> module = Assembler("m")                         # bytecode=15, 16 or 17 (default)
>>> module = module.function("add", "0ii_i", '''
...     %i2 = add.i32 %i0, %i1
...     return [%i2]
... ''')
>>> data = module.build()                           # bytes of a .vmfb; build("plain"): without the ZIP

Function bodies are lines of ``results = mnemonic operands``, mnemonics and operand order as in
``jitree/vmfb/isa.tsv`` (commas are optional):

* registers ``%i0`` (value slot; a 64-bit value is named by its even slot, in a list by the pair ``%i2:3``),
  ``%r0`` (ref), ``%R0`` (ref, moved); lists ``[%i0, %r1]``; an empty list at the end may be left out;
* branch targets ``^label`` with an optional remap ``{%i0->%i1, %R0->%r1}``; ``^label:`` on its own line
  begins a block (the entry block needs none); ``br_table %i0, ^default {}, [^a, ^b {%i0->%i1}]``;
* callees ``@name`` of a function or an import, or a raw number; types by name (``i32``), entered
  in the type table by that, or by ordinal; rodata by ordinal; strings in double quotes;
* integers, floats, ``nan``, ``inf``; ``0x…`` gives the bits of a float; ``//`` begins a comment;
* ``.bytes 79 FF 00`` puts raw bytes anywhere (for damaged bodies).

    loop: ``%i2 = const.i32 0`` / ``br ^head`` / ``^head:`` / ``cond_br %i0, ^head {%i1->%i0}, ^done`` …
    call: ``[%i1, %r0] = call @other [%i0, %R1]``; ``call.variadic @m.f [0xFFFF, 2] [%r0, %i0, %i1]``

Register counts, block count and requirements of a function follow from its text and calling convention; each
can be overridden: ``function(…, ref_count=0, block_count=7, length=3, offset=…, requirements=…)``. So can the
root's ``requirements`` and ``bytecode_version`` (raw u32): ``build(requirements=0x80)``.

Further: ``import_function("hal.x", "0r_v", optional=True)``, ``dependency("hal", 6)``,
``rodata(b"…", external=True) -> ordinal``, ``type("!vm.list<i8>") -> ordinal``, ``attr(key, value)``,
``export(name, function)`` for a second name, ``globals_size``, ``ref_global_count``, and
``Assembler(…, source="file.mlir")`` for a debug database that maps each instruction to its line of the text.
"""

from tests.assembler.body import AssemblyError
from tests.assembler.module import Assembler

__all__ = ["Assembler", "AssemblyError"]
