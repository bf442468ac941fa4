#pragma once
// Vectors of floats that loops are written in: private to train/cpu.
//
// Types, loads and stores alone, which round nothing: sources with contraction and without use
// them.

#include <cstdint>
#include <cstring>

#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

template <int Lanes>
struct VectorOf {
  using Type __attribute__((vector_size(Lanes * sizeof(float)))) = float;
  using Mask __attribute__((vector_size(Lanes * sizeof(float)))) = std::int32_t;
};
using Floats8 = VectorOf<8>::Type;
using Floats16 = VectorOf<16>::Type;

// Not by value: a vector's way through a call depends on the instruction set.
template <typename Element, typename Vector>
TROUPE_INLINE void load_vector(const Element* from, Vector& to) {
  std::memcpy(&to, from, sizeof to);
}
template <typename Vector, typename Element>
TROUPE_INLINE void store_vector(const Vector& from, Element* to) {
  std::memcpy(to, &from, sizeof from);
}

}  // namespace troupe::train::kernels
