typedef unsigned long long u64;
typedef unsigned u32;
constexpr u32 PIECE = 16 << 10;
