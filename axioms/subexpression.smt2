; A_sub: when an abstract expression is part of another (Wu et al., OSDI 2025, table 2).
; Read after equivalence.smt2, whose symbols it uses. Side conditions: README.md.
; Adding an opaque function is one declaration and one axiom here.
(declare-fun exp (Expr) Expr)
(declare-fun sqrt (Expr) Expr)
(declare-fun silu (Expr) Expr)
(declare-fun gelu (Expr) Expr)
(declare-fun relu (Expr) Expr)
(declare-fun sigmoid (Expr) Expr)
(declare-fun max (Expr) Expr)
(declare-fun tanh (Expr) Expr)
(declare-fun erf (Expr) Expr)
(declare-fun log (Expr) Expr)
(declare-fun maximum (Expr) Expr)
(declare-fun minimum (Expr) Expr)
(declare-fun select (Expr) Expr)
(declare-fun eq (Expr) Expr)
(declare-fun lt (Expr) Expr)
(declare-fun le (Expr) Expr)
(declare-fun round_float16 (Expr) Expr)
(declare-fun round_bfloat16 (Expr) Expr)
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

(assert (! (forall ((x Expr)) (!
  (subexpr x (exp x))
  :qid sub-exp)) :named sub-exp))

(assert (! (forall ((x Expr)) (!
  (subexpr x (sqrt x))
  :qid sub-sqrt)) :named sub-sqrt))

(assert (! (forall ((x Expr)) (!
  (subexpr x (silu x))
  :qid sub-silu)) :named sub-silu))

(assert (! (forall ((x Expr)) (!
  (subexpr x (gelu x))
  :qid sub-gelu)) :named sub-gelu))

(assert (! (forall ((x Expr)) (!
  (subexpr x (relu x))
  :qid sub-relu)) :named sub-relu))

(assert (! (forall ((x Expr)) (!
  (subexpr x (sigmoid x))
  :qid sub-sigmoid)) :named sub-sigmoid))

(assert (! (forall ((x Expr)) (!
  (subexpr x (max x))
  :qid sub-max)) :named sub-max))

(assert (! (forall ((x Expr)) (!
  (subexpr x (tanh x))
  :qid sub-tanh)) :named sub-tanh))

(assert (! (forall ((x Expr)) (!
  (subexpr x (erf x))
  :qid sub-erf)) :named sub-erf))

(assert (! (forall ((x Expr)) (!
  (subexpr x (log x))
  :qid sub-log)) :named sub-log))

(assert (! (forall ((x Expr)) (!
  (subexpr x (maximum x))
  :qid sub-maximum)) :named sub-maximum))

(assert (! (forall ((x Expr)) (!
  (subexpr x (minimum x))
  :qid sub-minimum)) :named sub-minimum))

(assert (! (forall ((x Expr)) (!
  (subexpr x (select x))
  :qid sub-select)) :named sub-select))

(assert (! (forall ((x Expr)) (!
  (subexpr x (eq x))
  :qid sub-eq)) :named sub-eq))

(assert (! (forall ((x Expr)) (!
  (subexpr x (lt x))
  :qid sub-lt)) :named sub-lt))

(assert (! (forall ((x Expr)) (!
  (subexpr x (le x))
  :qid sub-le)) :named sub-le))

(assert (! (forall ((x Expr)) (!
  (subexpr x (round_float16 x))
  :qid sub-round_float16)) :named sub-round_float16))

(assert (! (forall ((x Expr)) (!
  (subexpr x (round_bfloat16 x))
  :qid sub-round_bfloat16)) :named sub-round_bfloat16))
