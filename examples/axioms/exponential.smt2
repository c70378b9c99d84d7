; A law that fits the normal forms: f(x + y) = f(x) f(y). It is true of all real numbers.
; mirage-formal axioms --axioms examples/axioms/exponential.smt2
(assert (! (forall ((x Expr) (y Expr)) (!
  (= (exp (add x y)) (mul (exp x) (exp y)))
  :qid exp-of-sum)) :named exp-of-sum))
