"""What a µGraph computes, for any domain of values; and the float64 reference."""
