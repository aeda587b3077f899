// What generated kernels stand on: vectors of W lanes on the compiler's own vector extension (GCC, Clang), maths on them,
// loads and stores with any stride, and the register-tiled matrix product. No headers, so that a kernel compiles in well
// under a second. FL_DOUBLE is defined for kernels that compute in double: then a vector register holds W doubles.
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned u32;
typedef unsigned short u16;
typedef float f32;
typedef double f64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#define FL_INLINE inline __attribute__((always_inline))
#define FL_INF __builtin_inff()
#define FL_NAN __builtin_nanf("")
#if defined(__AVX512F__)
#define FL_BYTES 64
#elif defined(__AVX__)
#define FL_BYTES 32
#else
#define FL_BYTES 16
#endif
#ifdef FL_DOUBLE
#define FL_LANES (FL_BYTES / 8)
#else
#define FL_LANES (FL_BYTES / 4)
#endif
constexpr int W = FL_LANES;
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wattributes"

// Lanes of two vectors by constant numbers; R is the type of a vector of these.
#ifdef __clang__
#define FL_SHUFFLE(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define FL_SHUFFLE(A, B, ...) __builtin_shuffle(A, B, R{__VA_ARGS__})
#endif
template <class T, int N> struct Native { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
#ifdef FL_DOUBLE
template <class T> struct Vector { typedef typename Native<T, W>::type type; };
#else
#if FL_BYTES == 64
#define FL_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#elif FL_BYTES == 32
#define FL_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#else
#define FL_EVEN 0, 2, 4, 6
#endif
// W elements that fill two registers: compilers take vectors wider than a register apart, element by element.
template <class T> struct Pair {
  typedef typename Native<T, W / 2>::type Half;
  Half lo, hi;
  Pair() = default;
  FL_INLINE Pair(Half l, Half h) : lo(l), hi(h) {}
  FL_INLINE Pair(T x) : lo(x - Half{}), hi(x - Half{}) {}
  FL_INLINE T operator[](int w) const { return w < W / 2 ? lo[w] : hi[w - W / 2]; }
  FL_INLINE T& operator[](int w) { return ((T*)this)[w]; }
#define FL_PAIR(OP) \
  friend FL_INLINE Pair operator OP(Pair a, Pair b) { return {Half(a.lo OP b.lo), Half(a.hi OP b.hi)}; }
  FL_PAIR(+) FL_PAIR(-) FL_PAIR(*) FL_PAIR(/) FL_PAIR(&) FL_PAIR(|) FL_PAIR(^) FL_PAIR(<<) FL_PAIR(>>)
#undef FL_PAIR
  friend FL_INLINE Pair operator-(Pair a) { return {-a.lo, -a.hi}; }
  friend FL_INLINE Pair operator~(Pair a) { return {~a.lo, ~a.hi}; }
  friend FL_INLINE Pair& operator+=(Pair& a, Pair b) { return a = a + b; }
#define FL_PAIR(OP) \
  friend FL_INLINE typename Native<i32, W>::type operator OP(Pair a, Pair b) { return joined(a.lo OP b.lo, a.hi OP b.hi); }
  FL_PAIR(<) FL_PAIR(<=) FL_PAIR(>) FL_PAIR(>=) FL_PAIR(==) FL_PAIR(!=)
#undef FL_PAIR
  template <class M> static FL_INLINE typename Native<i32, W>::type joined(M lo, M hi) {  // masks of 8 bytes to masks of 4
    typedef typename Native<i32, W>::type R;
    return FL_SHUFFLE((R)lo, (R)hi, FL_EVEN);
  }
};
template <class T, bool Fits = (W * sizeof(T) <= FL_BYTES)> struct Vector { typedef typename Native<T, W>::type type; };
template <class T> struct Vector<T, false> { typedef Pair<T> type; };
#endif
template <class T> using V = typename Vector<T>::type;
typedef V<f32> vf32;
typedef V<f64> vf64;
typedef V<i32> vi32;  // also the mask of every vector of bools: 0 or -1 per lane
typedef V<i64> vi64;

template <class T> struct Element;
template <> struct Element<vf32> { typedef f32 type; };
template <> struct Element<vf64> { typedef f64 type; };
template <> struct Element<vi32> { typedef i32 type; };
template <> struct Element<vi64> { typedef i64 type; };

// Conversion between vectors of W elements.
template <class To, class From> struct Convert { FL_INLINE static To at(From x) { return __builtin_convertvector(x, To); } };
#ifndef FL_DOUBLE
template <class T, class From> struct Convert<Pair<T>, From> {
  typedef typename Pair<T>::Half Half;
  FL_INLINE static Pair<T> at(From x) {
    typename Native<typename Element<From>::type, W / 2>::type a, b;
    __builtin_memcpy(&a, &x, sizeof a);
    __builtin_memcpy(&b, (char*)&x + sizeof a, sizeof b);
    return {__builtin_convertvector(a, Half), __builtin_convertvector(b, Half)};
  }
};
template <class To, class T> struct Convert<To, Pair<T>> {
  typedef typename Native<typename Element<To>::type, W / 2>::type Half;
  FL_INLINE static To at(Pair<T> x) {
    Half a = __builtin_convertvector(x.lo, Half), b = __builtin_convertvector(x.hi, Half);
    To r;
    __builtin_memcpy(&r, &a, sizeof a);
    __builtin_memcpy((char*)&r + sizeof a, &b, sizeof b);
    return r;
  }
};
template <class T, class S> struct Convert<Pair<T>, Pair<S>> {
  typedef typename Pair<T>::Half Half;
  FL_INLINE static Pair<T> at(Pair<S> x) { return {__builtin_convertvector(x.lo, Half), __builtin_convertvector(x.hi, Half)}; }
};
#endif
template <class To, class From> FL_INLINE To converted(From x) { return Convert<To, From>::at(x); }

// -- Lanes.

FL_INLINE vf32 spread(f32 x) { return x - vf32{}; }
FL_INLINE vi32 spread(i32 x) { return x + vi32{}; }
#ifdef FL_DOUBLE
FL_INLINE vf64 spread(f64 x) { return x - vf64{}; }
FL_INLINE vi64 spread(i64 x) { return x + vi64{}; }
FL_INLINE vi32 mask(vi64 m) { return __builtin_convertvector(m, vi32); }
FL_INLINE vf64 select(vi32 m, vf64 a, vf64 b) { return __builtin_convertvector(m, vi64) ? a : b; }
FL_INLINE vi64 select(vi32 m, vi64 a, vi64 b) { return __builtin_convertvector(m, vi64) ? a : b; }
FL_INLINE vf64 m_abs(vf64 x) { return (vf64)((vi64)x & 0x7fffffffffffffffll); }
#else
FL_INLINE vf64 spread(f64 x) { return x; }
FL_INLINE vi64 spread(i64 x) { return x; }
template <class T> FL_INLINE Pair<T> select(vi32 m, Pair<T> a, Pair<T> b) {
  vi64 h = converted<vi64>(m);
  return {h.lo ? a.lo : b.lo, h.hi ? a.hi : b.hi};
}
#endif
FL_INLINE vi32 spread(bool x) { return -i32(x) + vi32{}; }
FL_INLINE vi32 iota() {
  vi32 r;
  for (int w = 0; w < W; w++) r[w] = w;
  return r;
}
FL_INLINE vi32 first(i64 n) { return iota() < spread(i32(n)); }  // lanes before n

FL_INLINE bool select(bool m, bool a, bool b) { return m ? a : b; }
FL_INLINE f32 select(bool m, f32 a, f32 b) { return m ? a : b; }
FL_INLINE f64 select(bool m, f64 a, f64 b) { return m ? a : b; }
FL_INLINE i32 select(bool m, i32 a, i32 b) { return m ? a : b; }
FL_INLINE i64 select(bool m, i64 a, i64 b) { return m ? a : b; }
FL_INLINE vf32 select(vi32 m, vf32 a, vf32 b) { return m ? a : b; }
FL_INLINE vi32 select(vi32 m, vi32 a, vi32 b) { return m ? a : b; }

FL_INLINE bool mask(bool m) { return m; }
FL_INLINE vi32 mask(vi32 m) { return m; }
FL_INLINE bool negate(bool m) { return !m; }
FL_INLINE vi32 negate(vi32 m) { return ~m; }

// -- Conversions. `to<T>` takes a scalar or a vector to element type T (C++ rules, with bools as masks).

template <class T> struct To {
  FL_INLINE static T at(bool x) { return T(x); }
  FL_INLINE static T at(i32 x) { return T(x); }
  FL_INLINE static T at(i64 x) { return T(x); }
  FL_INLINE static T at(f32 x) { return T(x); }
  FL_INLINE static T at(f64 x) { return T(x); }
  FL_INLINE static V<T> at(vi32 x) { return converted<V<T>>(x); }
  FL_INLINE static V<T> at(vi64 x) { return converted<V<T>>(x); }
  FL_INLINE static V<T> at(vf32 x) { return converted<V<T>>(x); }
  FL_INLINE static V<T> at(vf64 x) { return converted<V<T>>(x); }
};
template <class T, class X> FL_INLINE auto to(X x) { return To<T>::at(x); }
// The same from a bool: a mask is 0 or -1.
template <class T> FL_INLINE T from_bool(bool x) { return T(x); }
template <class T> FL_INLINE V<T> from_bool(vi32 m) { return To<T>::at(-m); }
template <class X> FL_INLINE bool is_set(X x) { return x != 0; }
FL_INLINE vi32 is_set(vi32 x) { return x != 0; }
FL_INLINE vi32 is_set(vi64 x) { return mask(x != 0); }
FL_INLINE vi32 is_set(vf32 x) { return x != 0; }
FL_INLINE vi32 is_set(vf64 x) { return mask(x != 0); }
// Narrow integers live in i32 lanes.
FL_INLINE i32 wrap_i8(i32 x) { return i8(x); }
FL_INLINE i32 wrap_u8(i32 x) { return u8(x); }
FL_INLINE i32 wrap_i16(i32 x) { return i16(x); }
FL_INLINE vi32 wrap_i8(vi32 x) { return (x << 24) >> 24; }
FL_INLINE vi32 wrap_u8(vi32 x) { return x & 255; }
FL_INLINE vi32 wrap_i16(vi32 x) { return (x << 16) >> 16; }

// -- 16-bit floats: computed in f32, rounded to nearest even.

template <class A, class B> FL_INLINE A bits(B x) { static_assert(sizeof(A) == sizeof(B)); A a; __builtin_memcpy(&a, &x, sizeof a); return a; }
FL_INLINE f32 widen(bf16 x) { return bits<f32>(u32(x.bits) << 16); }
FL_INLINE bf16 narrow_bf16(f32 x) {
  u32 u = bits<u32>(x);
  return {u16(x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
FL_INLINE f32 widen(f16 x) {
  u32 h = x.bits, sign = (h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  if (e == 31) return bits<f32>(sign | 0x7f800000 | m << 13);
  if (e == 0) return bits<f32>(sign | bits<u32>(f32(m) * 5.9604644775390625e-8f));
  return bits<f32>(sign | (e + 112) << 23 | m << 13);
}
FL_INLINE f16 narrow_f16(f32 x) {
  u32 u = bits<u32>(x), sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return {u16(sign | 0x7e00)};
  if (u >= 0x477ff000) return {u16(sign | 0x7c00)};
  if (u < 0x38800000) return {u16(sign | (bits<u32>(bits<f32>(u) + 0.5f) - 0x3f000000))};
  return {u16(sign | ((u + 0xfff + ((u >> 13) & 1) - 0x38000000) >> 13))};
}
FL_INLINE f32 round_bf16(f32 x) { return widen(narrow_bf16(x)); }
FL_INLINE f32 round_f16(f32 x) { return widen(narrow_f16(x)); }
typedef V<u32> vu32;
typedef V<u16> vu16;
FL_INLINE vu32 bf16_bits(vf32 x) {
  vu32 u = (vu32)x;
  vu32 r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (x != x) ? (vu32{} + 0x7fc0) : r;
}
FL_INLINE vf32 round_bf16(vf32 x) { return (vf32)(bf16_bits(x) << 16); }
FL_INLINE vf32 round_f16(vf32 x) {
  vf32 r;
  for (int w = 0; w < W; w++) r[w] = round_f16(x[w]);
  return r;
}

// -- Elementwise maths. Functions without a vector form run lane by lane through libm.

#define FL_EACH(NAME, F32, F64)                                                       \
  FL_INLINE f32 NAME(f32 x) { return F32(x); }                                        \
  FL_INLINE f64 NAME(f64 x) { return F64(x); }                                        \
  FL_INLINE vf32 NAME(vf32 x) { vf32 r; for (int w = 0; w < W; w++) r[w] = F32(x[w]); return r; } \
  FL_INLINE vf64 NAME(vf64 x) { vf64 r; for (int w = 0; w < W; w++) r[w] = F64(x[w]); return r; }
#define FL_LIBM(NAME) FL_EACH(m_##NAME, __builtin_##NAME##f, __builtin_##NAME)
FL_LIBM(tan) FL_LIBM(sinh) FL_LIBM(cosh) FL_LIBM(asin) FL_LIBM(acos) FL_LIBM(atan)
FL_LIBM(asinh) FL_LIBM(acosh) FL_LIBM(atanh) FL_LIBM(erf) FL_LIBM(erfc) FL_LIBM(expm1)
FL_LIBM(floor) FL_LIBM(ceil) FL_LIBM(trunc) FL_LIBM(sqrt)
FL_EACH(m_round, __builtin_rintf, __builtin_rint)
#define FL_VECTOR_F32(NAME)                                                           \
  FL_INLINE f32 m_##NAME(f32 x) { return __builtin_##NAME##f(x); }                    \
  FL_INLINE f64 m_##NAME(f64 x) { return __builtin_##NAME(x); }                       \
  FL_INLINE vf64 m_##NAME(vf64 x) { vf64 r; for (int w = 0; w < W; w++) r[w] = __builtin_##NAME(x[w]); return r; }
FL_VECTOR_F32(log2) FL_VECTOR_F32(log) FL_VECTOR_F32(log1p) FL_VECTOR_F32(tanh) FL_VECTOR_F32(sin) FL_VECTOR_F32(cos)
// exp and exp2 in double, by a polynomial, are for the vectors; scalars use the same so that a row and its tile agree.
template <class T> struct IntOf;
template <> struct IntOf<f32> { typedef i32 type; };
template <> struct IntOf<vf32> { typedef vi32 type; };
FL_INLINE f32 clamp(f32 x, f32 lo, f32 hi) { x = x < lo ? lo : x; return x > hi ? hi : x; }
FL_INLINE vf32 clamp(vf32 x, f32 lo, f32 hi) { x = x < lo ? spread(lo) : x; return x > hi ? spread(hi) : x; }
constexpr f32 MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, which is then in the low bits
template <class F> FL_INLINE F half_power_of_two(F t) {  // 2^(n - 1) from n + MAGIC; 0 for n = -126
  typedef typename IntOf<F>::type I;
  return bits<F>((bits<I>(t) << 23) + 0x3f000000);
}
template <class F> FL_INLINE F exp2_twice(F r) {  // 2 * 2^r for |r| <= 1/2
  F p = r * 0.00030706674f + 0.002679775f;
  p = p * r + 0.019236876f;
  p = p * r + 0.111006648f;
  p = p * r + 0.48045296f;
  p = p * r + 1.38629436f;
  return p * r + 2.0f;
}
// To 1.5 units in the last place, up to the largest float; results below 2^-125.5 are 0.
template <class F> FL_INLINE F exp2_f32(F x) {
  F c = clamp(x, -126.0f, 128.0f);
  F t = c + MAGIC;
  return exp2_twice(c - (t - MAGIC)) * half_power_of_two(t);
}
template <class F> FL_INLINE F exp_f32(F x) {
  F c = clamp(x, -87.336548f, 88.72284f);  // -126 log 2, and just above 128 log 2
  F t = c * 1.44269504f + MAGIC;
  F n = t - MAGIC;
  F r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  F p = r * 0.0013814610f + 0.0083687175f;
  p = p * r + 0.04166839f;
  p = p * r + 0.16666521f;
  p = p * r + 0.49999994f;
  p = p * (r * r) + r + 1.0f;
  return (p + p) * half_power_of_two(t);
}
FL_INLINE f32 m_exp(f32 x) { return exp_f32(x); }
FL_INLINE vf32 m_exp(vf32 x) { return exp_f32(x); }
FL_INLINE f32 m_exp2(f32 x) { return exp2_f32(x); }
FL_INLINE vf32 m_exp2(vf32 x) { return exp2_f32(x); }
FL_INLINE f64 m_exp(f64 x) { return __builtin_exp(x); }
FL_INLINE vf64 m_exp(vf64 x) { vf64 r; for (int w = 0; w < W; w++) r[w] = __builtin_exp(x[w]); return r; }
FL_INLINE f64 m_exp2(f64 x) { return __builtin_exp2(x); }
FL_INLINE vf64 m_exp2(vf64 x) { vf64 r; for (int w = 0; w < W; w++) r[w] = __builtin_exp2(x[w]); return r; }
FL_INLINE vf32 m_abs(vf32 x) { return (vf32)((vi32)x & 0x7fffffff); }
FL_INLINE vf32 m_log(vf32 x) {
  vi32 tiny = (x < 1.17549435e-38f) & (x > 0.0f);
  vf32 s = tiny ? x * 8388608.0f : x;
  vi32 u = (vi32)s - 0x3f3504f3;  // mantissa in [sqrt(1/2), sqrt(2))
  vf32 e = __builtin_convertvector(u >> 23, vf32) - (tiny ? spread(23.0f) : vf32{});
  vf32 f = (vf32)((u & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vf32 z = f * f;
  vf32 p = f * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  vf32 y = p * f * z + e * -2.12194440e-4f - 0.5f * z;
  y = f + y + e * 0.693359375f;
  y = x == FL_INF ? x : y;
  y = x == 0.0f ? spread(-FL_INF) : y;
  return x >= 0.0f ? y : spread(FL_NAN);
}
FL_INLINE vf32 m_log1p(vf32 x) {  // log(u) * x / (u - 1) mends what rounding 1 + x to u lost
  vf32 u = x + 1.0f, low = u - 1.0f;
  vf32 y = m_log(u) * (x / low);
  y = u == FL_INF ? u : y;
  return low == 0.0f ? x : y;
}
template <int QUARTER> FL_INLINE vf32 sine(vf32 x) {  // sin(x + QUARTER * pi / 2), in quarters of a turn
  constexpr f32 MOST = 1e5f;  // beyond it the number of quarters is not exact
  vi32 is_large = (m_abs(x) > MOST) & (m_abs(x) < FL_INF);
  vf32 t = x * 0.636619772f + MAGIC;
  vf64 turned = converted<vf64>(t - MAGIC) * spread(1.5707963267948966);
  vf32 r = converted<vf32>(converted<vf64>(x) - turned);
  vf32 z = r * r;
  vf32 s = ((z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
  vf32 c = ((z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  vi32 at = (vi32)t + QUARTER;
  vf32 y = (at & 1) != 0 ? c : s;
  y = (vf32)((vi32)y ^ ((at & 2) << 30));
  i32 any = 0;
  for (int w = 0; w < W; w++) any |= is_large[w];
  if (__builtin_expect(any, 0))
    for (int w = 0; w < W; w++)
      if (is_large[w]) y[w] = QUARTER ? __builtin_cosf(x[w]) : __builtin_sinf(x[w]);
  return y;
}
FL_INLINE vf32 m_sin(vf32 x) { return sine<0>(x); }
FL_INLINE vf32 m_cos(vf32 x) { return sine<1>(x); }
FL_INLINE vf32 m_log2(vf32 x) {
  vf32 r;
  for (int w = 0; w < W; w++) r[w] = __builtin_log2f(x[w]);
  return r;
}
FL_INLINE vf32 m_tanh(vf32 x) {
  vf32 a = m_abs(x), z = x * x;
  vf32 p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  vf32 near = p * (z * x) + x;
  vf32 c = a * 2.88539008f;  // e^2a as a power of two; what the factor's rounding does to it is small against 1
  c = c > 128.0f ? spread(128.0f) : c;
  vf32 t = c + MAGIC;
  vf32 e = exp2_twice(c - (t - MAGIC)) * half_power_of_two(t);
  vf32 far = 1.0f - 2.0f / (e + 1.0f);
  far = (vf32)((vi32)far | ((vi32)x & (i32)0x80000000));
  return a < 0.625f ? near : far;
}
template <class F> FL_INLINE F m_sigmoid(F x) { return 1 / (1 + m_exp(-x)); }
template <class F> FL_INLINE F m_rsqrt(F x) { return 1 / m_sqrt(x); }
template <class F> FL_INLINE F m_reciprocal(F x) { return 1 / x; }
FL_INLINE vi32 m_floor(vi32 x) { return x; }
FL_INLINE vi64 m_floor(vi64 x) { return x; }

template <class F> FL_INLINE auto is_nan(F x) { return mask(x != x); }
FL_INLINE bool is_inf(f32 x) { return x == FL_INF || x == -FL_INF; }
FL_INLINE bool is_inf(f64 x) { return x == __builtin_inf() || x == -__builtin_inf(); }
FL_INLINE vi32 is_inf(vf32 x) { return (x == FL_INF) | (x == -FL_INF); }
FL_INLINE vi32 is_inf(vf64 x) { return mask((x == __builtin_inf()) | (x == -__builtin_inf())); }
template <class F> FL_INLINE F anchor(F x) { return select(mask(x - x == 0), x, F{}); }
template <class X> FL_INLINE X m_abs(X x) { return select(mask(x < 0), -x, x); }
FL_INLINE f32 m_abs(f32 x) { return __builtin_fabsf(x); }
FL_INLINE f64 m_abs(f64 x) { return __builtin_fabs(x); }
template <class X> FL_INLINE X m_sign(X x) {  // 0 of NaN
  return select(mask(x > 0), X{} + 1, select(mask(x < 0), X{} - 1, X{}));
}

// max and min: `_nan` propagate NaN; `_any` return the second operand if either is NaN.
template <class X> FL_INLINE X max_any(X a, X b) { return select(mask(a > b), a, b); }
template <class X> FL_INLINE X min_any(X a, X b) { return select(mask(a < b), a, b); }
template <class X> FL_INLINE X max_nan(X a, X b) { return select(mask(a > b) | mask(a != a), a, b); }
template <class X> FL_INLINE X min_nan(X a, X b) { return select(mask(a < b) | mask(a != a), a, b); }
// a * b + c, rounded once wherever the machine can: two kernels that compute one score must not get different bits. GCC's own
// contraction misses some loops.
template <class X> FL_INLINE X fma3(X a, X b, X c) { return a * b + c; }
#if defined(__FMA__) && !defined(__clang__)
typedef Native<f32, FL_BYTES / 4>::type NativeF32;
typedef Native<f64, FL_BYTES / 8>::type NativeF64;
#if FL_BYTES == 64
FL_INLINE NativeF32 fma3(NativeF32 a, NativeF32 b, NativeF32 c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); }
FL_INLINE NativeF64 fma3(NativeF64 a, NativeF64 b, NativeF64 c) { return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4); }
#else
FL_INLINE NativeF32 fma3(NativeF32 a, NativeF32 b, NativeF32 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
FL_INLINE NativeF64 fma3(NativeF64 a, NativeF64 b, NativeF64 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
#endif
#ifndef FL_DOUBLE
template <class T> FL_INLINE Pair<T> fma3(Pair<T> a, Pair<T> b, Pair<T> c) { return {fma3(a.lo, b.lo, c.lo), fma3(a.hi, b.hi, c.hi)}; }
#endif
#endif

// Floored division and remainder, with torch's signs; x // 0 and x % 0 of integers are 0 (lanes past a tile's end hold anything).
template <class I> FL_INLINE I floordiv_int(I a, I b) {
  if (b == 0) return 0;
  if (b == -1) return I(0 - (unsigned long long)a);
  I q = a / b;
  return q - ((a % b != 0) & ((a ^ b) < 0));
}
template <class I> FL_INLINE I mod_int(I a, I b) {
  if (b == 0 || b == -1) return 0;
  I r = a % b;
  return r + ((r != 0) & ((r ^ b) < 0) ? b : 0);
}
template <class F> FL_INLINE F mod_float(F a, F b) {
  F r = sizeof(F) == 4 ? F(__builtin_fmodf(a, b)) : F(__builtin_fmod(a, b));
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
template <class F> FL_INLINE F floordiv_float(F a, F b) {
  if (b == 0) return a / b;
  F m = sizeof(F) == 4 ? F(__builtin_fmodf(a, b)) : F(__builtin_fmod(a, b));
  F q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= 1;
  if (q == 0) return sizeof(F) == 4 ? F(__builtin_copysignf(0.0f, a / b)) : F(__builtin_copysign(0.0, a / b));
  F down = sizeof(F) == 4 ? F(__builtin_floorf(q)) : F(__builtin_floor(q));
  return q - down > F(0.5) ? down + 1 : down;
}
FL_INLINE i32 floordiv(i32 a, i32 b) { return floordiv_int(a, b); }
FL_INLINE i64 floordiv(i64 a, i64 b) { return floordiv_int(a, b); }
FL_INLINE f32 floordiv(f32 a, f32 b) { return floordiv_float(a, b); }
FL_INLINE f64 floordiv(f64 a, f64 b) { return floordiv_float(a, b); }
FL_INLINE i32 mod(i32 a, i32 b) { return mod_int(a, b); }
FL_INLINE i64 mod(i64 a, i64 b) { return mod_int(a, b); }
FL_INLINE f32 mod(f32 a, f32 b) { return mod_float(a, b); }
FL_INLINE f64 mod(f64 a, f64 b) { return mod_float(a, b); }
FL_INLINE f32 power(f32 a, f32 b) { return __builtin_powf(a, b); }
FL_INLINE f64 power(f64 a, f64 b) { return __builtin_pow(a, b); }
template <class I> FL_INLINE I power_int(I a, I b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  I r = 1;
  for (; b; b >>= 1, a *= a) if (b & 1) r *= a;
  return r;
}
FL_INLINE i32 power(i32 a, i32 b) { return power_int(a, b); }
FL_INLINE i64 power(i64 a, i64 b) { return power_int(a, b); }
#define FL_LANES2(NAME)                                                               \
  FL_INLINE vf32 NAME(vf32 a, vf32 b) { vf32 r; for (int w = 0; w < W; w++) r[w] = NAME(f32(a[w]), f32(b[w])); return r; } \
  FL_INLINE vf64 NAME(vf64 a, vf64 b) { vf64 r; for (int w = 0; w < W; w++) r[w] = NAME(f64(a[w]), f64(b[w])); return r; } \
  FL_INLINE vi32 NAME(vi32 a, vi32 b) { vi32 r; for (int w = 0; w < W; w++) r[w] = NAME(i32(a[w]), i32(b[w])); return r; } \
  FL_INLINE vi64 NAME(vi64 a, vi64 b) { vi64 r; for (int w = 0; w < W; w++) r[w] = NAME(i64(a[w]), i64(b[w])); return r; }
FL_LANES2(floordiv) FL_LANES2(mod) FL_LANES2(power)
// The same where neither operand is negative.
FL_INLINE i32 quotient(i32 a, i32 b) { return b ? i32(u32(a) / u32(b)) : 0; }
FL_INLINE i64 quotient(i64 a, i64 b) { return b ? a / b : 0; }
FL_INLINE vi32 quotient(vi32 a, vi32 b) { vi32 r; for (int w = 0; w < W; w++) r[w] = quotient(i32(a[w]), i32(b[w])); return r; }
FL_INLINE vi64 quotient(vi64 a, vi64 b) { vi64 r; for (int w = 0; w < W; w++) r[w] = quotient(i64(a[w]), i64(b[w])); return r; }
template <class I> FL_INLINE I remainder(I a, I b) { return a - quotient(a, b) * b; }

// -- Memory. A tile holds compute types (f32 for 16-bit floats, i32 for narrow integers and masks); arrays hold their own.

FL_INLINE f32 value_of(f32 x) { return x; }
FL_INLINE f64 value_of(f64 x) { return x; }
FL_INLINE i32 value_of(i32 x) { return x; }
FL_INLINE i64 value_of(i64 x) { return x; }
FL_INLINE i32 value_of(i8 x) { return x; }
FL_INLINE i32 value_of(u8 x) { return x; }
FL_INLINE i32 value_of(i16 x) { return x; }
FL_INLINE bool value_of(bool x) { return x; }
FL_INLINE f32 value_of(bf16 x) { return widen(x); }
FL_INLINE f32 value_of(f16 x) { return widen(x); }
template <class T> struct ValueOf { typedef decltype(value_of(T())) type; typedef V<type> vector; };
template <> struct ValueOf<bool> { typedef bool type; typedef vi32 vector; };

template <class T> FL_INLINE V<T> tile_load(const T* p) { V<T> r; __builtin_memcpy(&r, p, sizeof r); return r; }
template <class T> FL_INLINE void tile_store(T* p, V<T> x) { __builtin_memcpy(p, &x, sizeof x); }

// Lanes [0, n) from p, p + stride, ...; the others are 0.
template <class T> struct Contiguous {
  FL_INLINE static typename ValueOf<T>::vector load(const T* p) {
    typename ValueOf<T>::vector r;
    for (int w = 0; w < W; w++) r[w] = value_of(p[w]);
    return r;
  }
};
template <> struct Contiguous<f32> { FL_INLINE static vf32 load(const f32* p) { return tile_load(p); } };
template <> struct Contiguous<f64> { FL_INLINE static vf64 load(const f64* p) { return tile_load(p); } };
template <> struct Contiguous<i32> { FL_INLINE static vi32 load(const i32* p) { return tile_load(p); } };
template <> struct Contiguous<i64> { FL_INLINE static vi64 load(const i64* p) { return tile_load(p); } };
template <> struct Contiguous<bf16> {
  FL_INLINE static vf32 load(const bf16* p) {
    vu16 h;
    __builtin_memcpy(&h, p, sizeof h);
    return (vf32)(__builtin_convertvector(h, vu32) << 16);
  }
};
template <> struct Contiguous<f16> {
  FL_INLINE static vf32 load(const f16* p) {
    vf32 r;
#if defined(__clang__) && (defined(__F16C__) || defined(__aarch64__))
    V<_Float16> h;
    __builtin_memcpy(&h, p, sizeof h);
    r = __builtin_convertvector(h, vf32);
#elif defined(__F16C__) && !defined(FL_DOUBLE)
    typedef f32 v8 __attribute__((vector_size(32)));
    typedef short s8 __attribute__((vector_size(16)));
    for (int w = 0; w < W; w += 8) {
      s8 h;
      __builtin_memcpy(&h, p + w, 16);
      v8 y = __builtin_ia32_vcvtph2ps256(h);
      __builtin_memcpy((f32*)&r + w, &y, 32);
    }
#else
    for (int w = 0; w < W; w++) r[w] = widen(p[w]);
#endif
    return r;
  }
};
template <> struct Contiguous<bool> {
  FL_INLINE static vi32 load(const bool* p) {
    typedef V<i8> vi8;
    vi8 h;
    __builtin_memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vi32) != 0;
  }
};
template <class T> FL_INLINE auto lane_of(T x) { return value_of(x); }
FL_INLINE i32 lane_of(bool x) { return -i32(x); }
template <class T> FL_INLINE typename ValueOf<T>::vector load(const T* p, i64 stride, i64 n) {
  if (n >= W && stride == 1) return Contiguous<T>::load(p);
  typename ValueOf<T>::vector r{};
  if (n >= W) {
    if (stride == 0) return spread(value_of(*p));
    for (i64 w = 0; w < W; w++) r[w] = lane_of(p[w * stride]);
  } else if (n > 0) {  // lanes at places known to the compiler stay in registers; those past the end read the last one
    for (i64 w = 0; w < W; w++) {
      auto x = lane_of(p[(w < n ? w : n - 1) * stride]);
      r[w] = w < n ? x : decltype(x)(0);
    }
  }
  return r;
}
// Lanes [lo, hi) only, of those that the vector has.
template <class T> FL_INLINE typename ValueOf<T>::vector load(const T* p, i64 stride, i64 lo, i64 hi) {
  if (lo <= 0) return load(p, stride, hi);
  typename ValueOf<T>::vector r{};
  for (i64 w = lo; w < W && w < hi; w++) r[w] = lane_of(p[w * stride]);
  return r;
}
template <class T> FL_INLINE typename ValueOf<T>::vector load(const T* p, i64 stride, i64 lo, i64 hi, vi32 m) {
  typename ValueOf<T>::vector r{};
  for (i64 w = lo < 0 ? 0 : lo; w < W && w < hi; w++)
    if (m[w]) r[w] = lane_of(p[w * stride]);
  return r;
}
template <class T> struct Narrow { template <class X> FL_INLINE static T at(X x) { return T(x); } };
template <> struct Narrow<bf16> { FL_INLINE static bf16 at(f32 x) { return narrow_bf16(x); } };
template <> struct Narrow<f16> { FL_INLINE static f16 at(f32 x) { return narrow_f16(x); } };
template <> struct Narrow<bool> { template <class X> FL_INLINE static bool at(X x) { return x != 0; } };
template <class T, class X> FL_INLINE void store(T* p, i64 stride, i64 lo, i64 hi, X x) {
  if (lo <= 0 && hi >= W) {
    if (stride == 1) {
      if constexpr (sizeof(T) >= 4) { tile_store(p, x); return; }
      if constexpr (__is_same(T, bf16)) {
        vu16 h = __builtin_convertvector(bf16_bits(x), vu16);
        __builtin_memcpy(p, &h, sizeof h);
        return;
      }
    }
    for (i64 w = 0; w < W; w++) p[w * stride] = Narrow<T>::at(x[w]);
    return;
  }
  for (i64 w = lo < 0 ? 0 : lo; w < W && w < hi; w++) p[w * stride] = Narrow<T>::at(x[w]);
}
template <class T, class X> FL_INLINE void store(T* p, i64 stride, i64 lo, i64 hi, X x, vi32 m) {
  for (i64 w = lo < 0 ? 0 : lo; w < W && w < hi; w++)
    if (m[w]) p[w * stride] = Narrow<T>::at(x[w]);
}
// Rows and columns: W rows of an array as vectors along the rows, one for each column (p + row * rs + column * cs). Where columns
// are contiguous they are moved a block at a time.

#define FL_SWAP(S) \
  for (int i = 0; i < W; i++) { \
    if (i & S) continue; \
    X x = a[i], y = a[i + S]; \
    a[i] = FL_LOW_##S(x, y); \
    a[i + S] = FL_HIGH_##S(x, y); \
  }
#if FL_LANES == 4
#define FL_LOW_1(A, B) FL_SHUFFLE(A, B, 0, 4, 2, 6)
#define FL_HIGH_1(A, B) FL_SHUFFLE(A, B, 1, 5, 3, 7)
#define FL_LOW_2(A, B) FL_SHUFFLE(A, B, 0, 1, 4, 5)
#define FL_HIGH_2(A, B) FL_SHUFFLE(A, B, 2, 3, 6, 7)
#elif FL_LANES == 8
#define FL_LOW_1(A, B) FL_SHUFFLE(A, B, 0, 8, 2, 10, 4, 12, 6, 14)
#define FL_HIGH_1(A, B) FL_SHUFFLE(A, B, 1, 9, 3, 11, 5, 13, 7, 15)
#define FL_LOW_2(A, B) FL_SHUFFLE(A, B, 0, 1, 8, 9, 4, 5, 12, 13)
#define FL_HIGH_2(A, B) FL_SHUFFLE(A, B, 2, 3, 10, 11, 6, 7, 14, 15)
#define FL_LOW_4(A, B) FL_SHUFFLE(A, B, 0, 1, 2, 3, 8, 9, 10, 11)
#define FL_HIGH_4(A, B) FL_SHUFFLE(A, B, 4, 5, 6, 7, 12, 13, 14, 15)
#elif FL_LANES == 16
#define FL_LOW_1(A, B) FL_SHUFFLE(A, B, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define FL_HIGH_1(A, B) FL_SHUFFLE(A, B, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define FL_LOW_2(A, B) FL_SHUFFLE(A, B, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define FL_HIGH_2(A, B) FL_SHUFFLE(A, B, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define FL_LOW_4(A, B) FL_SHUFFLE(A, B, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define FL_HIGH_4(A, B) FL_SHUFFLE(A, B, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define FL_LOW_8(A, B) FL_SHUFFLE(A, B, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define FL_HIGH_8(A, B) FL_SHUFFLE(A, B, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#endif
template <class X> FL_INLINE void transpose(X* a) {
  typedef vi32 R;  // of the masks
#if FL_LANES >= 4
#pragma GCC unroll 64
  FL_SWAP(1)
#pragma GCC unroll 64
  FL_SWAP(2)
#endif
#if FL_LANES >= 8
#pragma GCC unroll 64
  FL_SWAP(4)
#endif
#if FL_LANES >= 16
#pragma GCC unroll 64
  FL_SWAP(8)
#endif
}
template <class T> constexpr bool in_blocks = sizeof(typename ValueOf<T>::type) == 4 && !__is_same(T, bool) && W > 2;
// Only rows [lo, hi) and columns [first, last) exist; the others are 0.
template <class T, class X>
void load_rows(X* out, const T* p, i64 rs, i64 cs, i64 lo, i64 hi, i64 first, i64 last, i64 n) {
  i64 c = 0;
  if constexpr (in_blocks<T>) {
    if (cs == 1 && rs != 1 && lo <= 0 && hi >= W && first <= 0)
      for (; c + W <= n && c + W <= last; c += W) {
        typename ValueOf<T>::vector a[W];
#pragma GCC unroll 64
        for (int w = 0; w < W; w++) a[w] = Contiguous<T>::load(p + w * rs + c);
        transpose(a);
#pragma GCC unroll 64
        for (int w = 0; w < W; w++) tile_store(out + (c + w) * W, a[w]);
      }
  }
  for (; c < n; c++) {
    bool in = c >= first && c < last;
    tile_store(out + c * W, in ? load<T>(p + c * cs, rs, lo, hi) : typename ValueOf<T>::vector{});
  }
}
template <class T, class X>
void store_rows(T* p, i64 rs, i64 cs, i64 lo, i64 hi, i64 first, i64 last, i64 n, const X* in) {
  i64 c = first < 0 ? 0 : first;
  n = last < n ? last : n;
  if constexpr (in_blocks<T>) {
    if (cs == 1 && rs != 1 && lo <= 0 && hi >= W)
      for (; c + W <= n; c += W) {
        V<X> a[W];
#pragma GCC unroll 64
        for (int w = 0; w < W; w++) a[w] = tile_load(in + (c + w) * W);
        transpose(a);
#pragma GCC unroll 64
        for (int w = 0; w < W; w++) store<T>(p + w * rs + c, 1, 0, W, a[w]);
      }
  }
  for (; c < n; c++) store<T>(p + c * cs, rs, lo, hi, tile_load(in + c * W));
}
FL_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
FL_INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }
FL_INLINE i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
template <class T> FL_INLINE void fill(T* p, i64 n, T x) { for (i64 i = 0; i < n; i++) p[i] = x; }
template <class T> FL_INLINE void copy(T* p, const T* q, i64 n) { __builtin_memcpy(p, q, n * sizeof(T)); }

// -- Reductions. A position is kept with its value; the first of equals wins, and a NaN wins over all.

template <class X> FL_INLINE X plus(X a, X b) { return a + b; }
template <class X> FL_INLINE X times(X a, X b) { return a * b; }
// x * 0, which is NaN where x is no number: GCC takes it for 0 where zeros need no sign.
template <class X> FL_INLINE X times_zero(X x) { return x - x; }
template <class X> FL_INLINE X both(X a, X b) { return a & b; }
template <class X> FL_INLINE X either(X a, X b) { return a | b; }
#define FL_HORIZONTAL(NAME, OP)                                                        \
  template <class X> FL_INLINE typename Element<X>::type NAME(X x) {                      \
    typename Element<X>::type a[W];                                                       \
    for (int w = 0; w < W; w++) a[w] = x[w];                                           \
    for (int n = W / 2; n; n /= 2) for (int w = 0; w < n; w++) a[w] = OP(a[w], a[w + n]); \
    return a[0];                                                                       \
  }
FL_HORIZONTAL(across_plus, plus) FL_HORIZONTAL(across_times, times)
FL_HORIZONTAL(across_max_nan, max_nan) FL_HORIZONTAL(across_min_nan, min_nan)
FL_HORIZONTAL(across_max_any, max_any) FL_HORIZONTAL(across_min_any, min_any)
FL_INLINE bool across_both(vi32 x) { i32 r = -1; for (int w = 0; w < W; w++) r &= x[w]; return r != 0; }
FL_INLINE bool across_either(vi32 x) { i32 r = 0; for (int w = 0; w < W; w++) r |= x[w]; return r != 0; }
template <class X> FL_INLINE auto beats_max(X x, X a) { return mask(x > a) | (mask(x != x) & mask(a == a)); }
template <class X> FL_INLINE auto beats_min(X x, X a) { return mask(x < a) | (mask(x != x) & mask(a == a)); }
template <class X> FL_INLINE i32 winner_max(X x, vi32 at) {
  int b = 0;
  for (int w = 1; w < W; w++) {
    auto y = x[w], z = x[b];
    if (beats_max(y, z) || ((y == z || (y != y && z != z)) && at[w] < at[b])) b = w;
  }
  return at[b];
}
template <class X> FL_INLINE i32 winner_min(X x, vi32 at) {
  int b = 0;
  for (int w = 1; w < W; w++) {
    auto y = x[w], z = x[b];
    if (beats_min(y, z) || ((y == z || (y != y && z != z)) && at[w] < at[b])) b = w;
  }
  return at[b];
}

// -- Matrix products on tiles: C[m, n] (+)= sum over k of A[m, k] * B[k, n]. A is read element by element, at any strides; lanes
// run along n, so B and C are vectors: vector j of row k of B is at B + k * bk + j * bj.

#if FL_BYTES == 64
#define FL_ROWS 12
#elif FL_BYTES == 32
#define FL_ROWS 6
#else
#define FL_ROWS 4
#endif
// `Unit` says which stride of A is known to be 1: 'k', 'm' or 0 for neither.
template <class T, int M, int N, char Unit>
FL_INLINE void product_block(i64 K, const T* A, i64 am, i64 ak, const T* B, i64 bk, i64 bj, T* C, i64 cm, i64 cj, bool add) {
  V<T> c[M][N];
  const T* a[M];
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
    a[i] = A + i * am;
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) c[i][j] = V<T>{};
  }
#pragma GCC unroll 2
  for (i64 k = 0; k < K; k++) {
    V<T> b[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) b[j] = tile_load(B + j * bj);
    B += bk;
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
      V<T> x = spread(Unit == 'k' ? a[i][k] : Unit == 'm' ? A[i] : A[i * am]);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) c[i][j] = fma3(x, b[j], c[i][j]);
    }
    if (Unit != 'k') A += ak;
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) {
      T* p = C + i * cm + j * cj;
      tile_store(p, add ? tile_load(p) + c[i][j] : c[i][j]);
    }
}
template <class T, int N, char Unit>
FL_INLINE void product_panel(i64 M, i64 K, const T* A, i64 am, i64 ak, const T* B, i64 bk, i64 bj, T* C, i64 cm, i64 cj, bool add) {
  i64 i = 0;
  for (; i + FL_ROWS <= M; i += FL_ROWS)
    product_block<T, FL_ROWS, N, Unit>(K, A + i * am, am, ak, B, bk, bj, C + i * cm, cm, cj, add);
  for (; i + 2 <= M; i += 2)
    product_block<T, 2, N, Unit>(K, A + i * am, am, ak, B, bk, bj, C + i * cm, cm, cj, add);
  if (i < M) product_block<T, 1, N, Unit>(K, A + i * am, am, ak, B, bk, bj, C + i * cm, cm, cj, add);
}
template <class T, char Unit>
__attribute__((noinline)) void product_of(i64 M, i64 n, i64 K, const T* A, i64 am, i64 ak, const T* B, i64 bk, i64 bj, T* C, i64 cm, i64 cj, bool add) {
  i64 j = 0;
  for (; j + 2 <= n; j += 2) product_panel<T, 2, Unit>(M, K, A, am, ak, B + j * bj, bk, bj, C + j * cj, cm, cj, add);
  if (j < n) product_panel<T, 1, Unit>(M, K, A, am, ak, B + j * bj, bk, bj, C + j * cj, cm, cj, add);
}
// `n` counts vectors of lanes.
template <class T>
FL_INLINE void product(i64 M, i64 n, i64 K, const T* A, i64 am, i64 ak, const T* B, i64 bk, i64 bj, T* C, i64 cm, i64 cj, bool add) {
  if (ak == 1) product_of<T, 'k'>(M, n, K, A, am, ak, B, bk, bj, C, cm, cj, add);
  else if (am == 1) product_of<T, 'm'>(M, n, K, A, am, ak, B, bk, bj, C, cm, cj, add);
  else product_of<T, 0>(M, n, K, A, am, ak, B, bk, bj, C, cm, cj, add);
}
// A tile whose lanes run along another axis than n, brought into vectors along n: [n / W][k][W].
template <class T> void pack(i64 N, i64 K, const T* B, i64 bk, i64 bn, T* P) {
  for (i64 j = 0; j < N; j += W) load_rows<T>(P + j * K, B + j * bn, bn, bk, 0, N - j, 0, K, K);
}
#ifdef _OPENMP
extern "C" int omp_get_thread_num(void);
#else
static int omp_get_thread_num() { return 0; }
#endif
