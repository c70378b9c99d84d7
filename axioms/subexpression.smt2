; A_sub: when an abstract expression is part of another (Wu et al., OSDI 2025, table 2).
; Read after equivalence.smt2, whose symbols it uses. Side conditions: README.md.
(declare-fun subexpr (Expr Expr) Bool)

(assert (! (forall ((x Expr)) (!
  (subexpr x x)
  :qid sub-refl)) :named sub-refl))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (=> (and (subexpr x y) (subexpr y z)) (subexpr x z))
  :qid sub-trans)) :named sub-trans))

(assert (! (forall ((x Expr) (y Expr)) (!
  (subexpr x (add x y))
  :qid sub-add)) :named sub-add))

(assert (! (forall ((x Expr) (y Expr)) (!
  (subexpr x (mul x y))
  :qid sub-mul)) :named sub-mul))

(assert (! (forall ((x Expr) (y Expr)) (!
  (subexpr x (divide x y))
  :qid sub-div-numerator)) :named sub-div-numerator))

(assert (! (forall ((x Expr) (y Expr)) (!
  (subexpr y (divide x y))
  :qid sub-div-denominator)) :named sub-div-denominator))

(assert (! (forall ((i Int) (x Expr)) (!
  (subexpr x (sum i x))
  :qid sub-sum)) :named sub-sum))

; f stands for each opaque function: these two commands are read once for each of them, with its name in the place of f.
(declare-fun f (Expr) Expr)

(assert (! (forall ((x Expr)) (!
  (subexpr x (f x))
  :qid sub-f)) :named sub-f))
