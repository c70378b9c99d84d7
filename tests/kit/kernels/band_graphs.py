"""Texts of µGraphs with band masks: attention and selections, whole and in parts."""

from __future__ import annotations

from mirage_formal.graph.types import Band

#: Attention whose rows are split by the grid and whose columns by the loop; {value} is selected where the mask is 0.
FLASH = """mugraph 1
d0 = input(Q) dtype=float16 shape=[2,{rows},16]
d1 = input(K) dtype=float16 shape=[2,16,{columns}]
d2 = input(V) dtype=float16 shape=[2,{columns},16]
d3 = input(M) dtype=bool shape=[1,{rows},{columns}] band={band}
d4 = graph_defined(d0, d1, d2, d3) grid=[2,{grid},1] block=[128,1,1] forloop_range={loop} reduction_dimx=64 {{
  s0 = input(d0) imap=[0,1,-] fmap=-
  s1 = input(d1) imap=[0,-,-] fmap=2
  s2 = input(d2) imap=[0,-,-] fmap=1
  s3 = input(d3) imap=[-,1,-] fmap=2
  s4 = matmul(s0, s1)
  s5 = exp(s4)
  s6 = select(s3, s5) value={value}
  s7 = accum_sum_last(s6)
  s8 = matmul(s6, s2)
  s9 = accum_sum(s8)
  s10 = div_no_nan(s9, s7)
  output(s10) omap=[0,1,-]
}}
output(d4)
"""
#: The same with the keys split by the grid as well, and a second kernel that adds up the parts (flash-decoding).
SPLIT = """mugraph 1
d0 = input(Q) dtype=float16 shape=[2,{rows},16]
d1 = input(K) dtype=float16 shape=[2,16,{columns}]
d2 = input(V) dtype=float16 shape=[2,{columns},16]
d3 = input(M) dtype=bool shape=[1,{rows},{columns}] band={band}
d4, d5 = graph_defined(d0, d1, d2, d3) grid=[2,{grid},4] block=[128,1,1] forloop_range={loop} reduction_dimx=64 {{
  s0 = input(d0) imap=[0,1,-] fmap=-
  s1 = input(d1) imap=[0,-,2] fmap=2
  s2 = input(d2) imap=[0,-,1] fmap=1
  s3 = input(d3) imap=[-,1,2] fmap=2
  s4 = matmul(s0, s1)
  s5 = exp(s4)
  s6 = select(s3, s5) value=0
  s7 = accum_sum_last(s6)
  s8 = matmul(s6, s2)
  s9 = accum_sum(s8)
  output(s9) omap=[0,1,2]
  output(s7) omap=[0,1,2]
}}
d6 = reshape(d4) shape=[2,{rows},4,16]
d7 = reshape(d5) shape=[2,{rows},4,1]
d8 = graph_defined(d6, d7) grid=[2,1,1] block=[128,1,1] forloop_range=1 reduction_dimx=64 {{
  s0 = input(d6) imap=[0,-,-] fmap=-
  s1 = input(d7) imap=[0,-,-] fmap=-
  s2 = sum(s0) dim=2
  s3 = accum_sum(s2)
  s4 = sum(s1) dim=2
  s5 = accum_sum(s4)
  s6 = div_no_nan(s3, s5)
  output(s6) omap=[0,-,-]
}}
d9 = reshape(d8) shape=[2,{rows},16]
output(d9)
"""
#: Tiles that overhang: queries, keys and mask are padded to whole tiles, and the result is cut.
PADDED = """mugraph 1
d0 = input(Q) dtype=float16 shape=[2,{rows},16]
d1 = input(K) dtype=float16 shape=[2,16,{columns}]
d2 = input(V) dtype=float16 shape=[2,{columns},16]
d3 = input(M) dtype=bool shape=[1,{rows},{columns}] band={band}
d4 = pad(d0) dim=1 before=0 after={more_rows}
d5 = pad(d1) dim=2 before=0 after={more_columns}
d6 = pad(d2) dim=1 before=0 after={more_columns}
d7 = pad(d3) dim=1 before=0 after={more_rows}
d8 = pad(d7) dim=2 before=0 after={more_columns}
d9 = graph_defined(d4, d5, d6, d8) grid=[2,{grid},1] block=[128,1,1] forloop_range={loop} reduction_dimx=64 {{
  s0 = input(d4) imap=[0,1,-] fmap=-
  s1 = input(d5) imap=[0,-,-] fmap=2
  s2 = input(d6) imap=[0,-,-] fmap=1
  s3 = input(d8) imap=[-,1,-] fmap=2
  s4 = matmul(s0, s1)
  s5 = exp(s4)
  s6 = select(s3, s5) value=0
  s7 = accum_sum_last(s6)
  s8 = matmul(s6, s2)
  s9 = accum_sum(s8)
  s10 = div_no_nan(s9, s7)
  output(s10) omap=[0,1,-]
}}
d10 = slice(d9) dim=1 start=0 stop={rows}
output(d10)
"""
#: One selection, without products: the grid splits the rows, the loop the columns.
SELECTION = """mugraph 1
d0 = input(X) dtype=float16 shape=[3,{rows},48]
d1 = input(M) dtype=bool shape=[1,{rows},48] band={band}
d2 = graph_defined(d0, d1) grid=[3,4,1] block=[128,1,1] forloop_range={loop} reduction_dimx=64 {{
  s0 = input(d0) imap=[0,1,-] fmap=2
  s1 = input(d1) imap=[-,1,-] fmap=2
  s2 = exp(s0)
  s3 = select(s1, s2) value={value}
  s4 = accum_sum_last(s3)
  output(s4) omap=[0,1,-]
}}
output(d2)
"""
#: Two masks of one shape: what one of them selects is scaled, what the other selects is not.
TWO = """mugraph 1
d0 = input(X) dtype=float16 shape=[64,64]
d1 = input(M) dtype=bool shape=[64,64] band={band}
d2 = input(N) dtype=bool shape=[64,64] band={other}
d3 = graph_defined(d0, d1, d2) grid=[2,1,1] block=[128,1,1] forloop_range=4 reduction_dimx=64 {{
  s0 = input(d0) imap=[0,-,-] fmap=1
  s1 = input(d1) imap=[0,-,-] fmap=1
  s2 = input(d2) imap=[0,-,-] fmap=1
  s3 = scale(s0) factor=3
  s4 = select(s1, s0) value=0
  s5 = select(s2, s3) value=0
  s6 = add(s4, s5)
  s7 = accum_sum_last(s6)
  output(s7) omap=[0,-,-]
}}
output(d3)
"""
#: Causal; windows, also ones that keep one diagonal; triu and tril with diagonals; nothing at all, and everything.
BANDS = (
    *(Band(None, 0), Band(-20, 0), Band(None, 7), Band(None, -9), Band(3, None), Band(-11, 25), Band(-5, -5)),
    *(Band(500, None), Band(-500, 2**31)),
)


def bounds(band: Band) -> str:
    return f"[{','.join('-' if one is None else str(one) for one in (band.lower, band.upper))}]"
