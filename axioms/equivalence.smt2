; A_eq: which abstract expressions are equal (Wu et al., OSDI 2025, table 2).
; Every variable ranges over abstract expressions, i and j over extents of sums (positive integers).
; Citation and side condition of each axiom: README.md. There is no cancellation, on purpose.
(set-info :smt-lib-version 2.6)
(set-logic UFNIA)
(declare-sort Expr 0)
(declare-fun add (Expr Expr) Expr)
(declare-fun mul (Expr Expr) Expr)
(declare-fun divide (Expr Expr) Expr)
(declare-fun sum (Int Expr) Expr)

(assert (! (forall ((x Expr) (y Expr)) (!
  (= (add x y) (add y x))
  :qid add-comm)) :named add-comm))

(assert (! (forall ((x Expr) (y Expr)) (!
  (= (mul x y) (mul y x))
  :qid mul-comm)) :named mul-comm))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (add (add x y) z) (add x (add y z)))
  :qid add-assoc)) :named add-assoc))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (mul (mul x y) z) (mul x (mul y z)))
  :qid mul-assoc)) :named mul-assoc))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (mul x (add y z)) (add (mul x y) (mul x z)))
  :qid mul-over-add)) :named mul-over-add))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (divide (add x y) z) (add (divide x z) (divide y z)))
  :qid div-over-add)) :named div-over-add))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (mul x (divide y z)) (divide (mul x y) z))
  :qid mul-div)) :named mul-div))

(assert (! (forall ((x Expr) (y Expr) (z Expr)) (!
  (= (divide (divide x y) z) (divide x (mul y z)))
  :qid div-div)) :named div-div))

(assert (! (forall ((x Expr)) (!
  (= (sum 1 x) x)
  :qid sum-one)) :named sum-one))

(assert (! (forall ((i Int) (j Int) (x Expr)) (!
  (= (sum i (sum j x)) (sum (* i j) x))
  :qid sum-sum)) :named sum-sum))

(assert (! (forall ((i Int) (x Expr) (y Expr)) (!
  (= (sum i (add x y)) (add (sum i x) (sum i y)))
  :qid sum-over-add)) :named sum-over-add))

(assert (! (forall ((i Int) (x Expr) (y Expr)) (!
  (= (sum i (mul x y)) (mul (sum i x) y))
  :qid sum-mul)) :named sum-mul))

(assert (! (forall ((i Int) (x Expr) (y Expr)) (!
  (= (sum i (divide x y)) (divide (sum i x) y))
  :qid sum-div)) :named sum-div))
