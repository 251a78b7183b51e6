#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels as C: embed_ptx.py CC OUTPUT SOURCE.ptx.S...

Preprocesses every module as `make ptx-modules` does, without line markers, and writes one header for
src/cuda/cuda_kernels.c:

    PTX_MODULE_LIST(X)  X(name, bytes) for every module; its text is ptx_text_NAME, zero-terminated
    PTX_KERNEL_LIST(X)  X(module, kernel, n_params) for every .entry, in the order of the sources
    PTX_PARAMS_KERNEL   initialisers {"name", offset, bytes} of its .param list
    PTX_CHECK_KERNEL(type, threads, tile_x, tile_y)
                        static assertions: `type` has these parameters, at these offsets, in these
                        widths and nothing more (so it must be packed); a block has so many threads at most (.reqntid or
                        .maxntid); a block covers so much in x and y (the head comment's grid line)

so that a launch table that does not match the kernels does not compile. A kernel without one of these
declarations, or with a parameter of an unknown type, is an error here.
"""
import re
import subprocess
import sys
from pathlib import Path

C_TYPES = {"u64": ("u64", 8), "u32": ("u32", 4), "f32": ("f32", 4)}
ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)\s*((?:\.\w+\s[^{.]*)*)\{")
PARAM = re.compile(r"\s*\.param\s+\.(\w+)\s+(\w+)\s*")
THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)\s*,\s*1\s*,\s*1\b")


class Mistake(Exception):
    pass


def preprocess(compiler, source):
    text = subprocess.run([compiler, "-E", "-P", "-x", "assembler-with-cpp", "-undef", "-nostdinc",
                           str(source)], check=True, capture_output=True, text=True).stdout
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def parameters(kernel, text):
    """(name, C type, offset, bytes) of each, at the offsets of the parameter space."""
    result, offset = [], 0
    for declaration in text.split(","):
        found = PARAM.fullmatch(declaration)
        if not found or found[1] not in C_TYPES:
            raise Mistake(f"kernel {kernel}: parameter not understood: {declaration.strip()!r}")
        c_type, size = C_TYPES[found[1]]
        offset = (offset + size - 1) // size * size
        result.append((found[2], c_type, offset, size))
        offset += size
    return result


def tile(term):
    """What a block covers of one dimension: 256 for "ceil(n / 256)", 1 for "rows"."""
    product = 1
    while "/" in term:
        found = re.fullmatch(r"ceil\((.*) / (\d+)\)", term.strip())
        if not found:
            raise Mistake(f"grid not understood: {term}")
        term, product = found[1], product * int(found[2])
    return product


def tiles(kernel, source_text):
    head = re.search(rf"^// kernel {kernel}\n(?:// .*\n)*?//   grid: (.*)\n", source_text, re.M)
    if not head:
        raise Mistake(f"kernel {kernel}: its head comment has no grid line")
    terms = re.split(r", (?![^(]*\))", head[1])
    if len(terms) not in (2, 3) or len(terms) == 3 and tile(terms[2]) != 1:
        raise Mistake(f"kernel {kernel}: grid not understood: {head[1]}")
    return tile(terms[0]), tile(terms[1])


def kernel_lines(kernel, params, threads, tile_xy):
    yield f"#define PTX_PARAMS_{kernel} \\"
    yield "    " + ", ".join(f'{{"{name}", {offset}, {size}}}' for name, _, offset, size in params)
    checks = [f'sizeof(((type *)0)->{name}) == {size} && offsetof(type, {name}) == {offset} && '
              f"_Generic(((type *)0)->{name}, {c_type}: 1, default: 0)"
              for name, c_type, offset, size in params]
    end = params[-1][2] + params[-1][3]
    checks.append(f"sizeof(type) == {end}")
    yield f"#define PTX_CHECK_{kernel}(type, threads, tile_x, tile_y) \\"
    for check in checks:
        yield f'    static_assert({check}, "kernel {kernel}: its .param list"); \\'
    yield f'    static_assert((threads) == {threads}, "kernel {kernel}: threads of a block"); \\'
    yield f"    static_assert((tile_x) == {tile_xy[0]} && (tile_y) == {tile_xy[1]}, \\"
    yield f'                  "kernel {kernel}: its grid")'


def header(compiler, sources):
    modules, kernels, texts, details = [], [], [], []
    for source in sources:
        name = source.name.removesuffix(".ptx.S")
        text, source_text = preprocess(compiler, source), source.read_text()
        modules.append(f"X({name}, {len(text)})")
        texts.append(f"static const char ptx_text_{name}[{len(text) + 1}] =")
        quoted = (line.replace("\\", "\\\\").replace('"', '\\"') for line in text.splitlines())
        texts.append("\n".join(f'    "{line}\\n"' for line in quoted) + ";")
        entries = ENTRY.findall(text)
        if len(entries) != text.count(".entry") or not entries:
            raise Mistake(f"module {name}: {len(entries)} of {text.count('.entry')} entries understood")
        for kernel, parameter_text, directives in entries:
            threads = THREADS.search(directives)
            if not threads:
                raise Mistake(f"kernel {kernel}: neither .reqntid nor .maxntid")
            params = parameters(kernel, parameter_text)
            kernels.append(f"X({name}, {kernel}, {len(params)})")
            details += kernel_lines(kernel, params, threads[1], tiles(kernel, source_text))
    yield "// Made by tools/embed_ptx.py from src/cuda/ptx/. Not to be edited."
    yield "#pragma once"
    yield "#define PTX_MODULE_LIST(X) \\\n    " + " \\\n    ".join(modules)
    yield "#define PTX_KERNEL_LIST(X) \\\n    " + " \\\n    ".join(kernels)
    yield from details
    yield from texts


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        text = "\n".join(header(sys.argv[1], [Path(name) for name in sys.argv[3:]])) + "\n"
    except (Mistake, subprocess.CalledProcessError) as mistake:
        sys.exit(f"embed_ptx.py: {mistake}")
    output = Path(sys.argv[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)


if __name__ == "__main__":
    main()
