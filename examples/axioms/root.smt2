; An equation that does not fit the normal forms, which keep a root as it is: models and z3 are asked about it.
; It is true of all real numbers x and y from 0 up.
; mirage-formal axioms --axioms examples/axioms/root.smt2
(assert (! (forall ((x Expr) (y Expr)) (!
  (= (sqrt (mul x y)) (mul (sqrt x) (sqrt y)))
  :qid root-of-product)) :named root-of-product))
