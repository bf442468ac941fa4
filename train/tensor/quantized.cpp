#include "train/tensor/quantized.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/base/check.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

constexpr std::size_t kPartAlign = 64;
// A block of zeros is divided by this.
constexpr float kAbsmaxMin = 1e-38f;
// Values of a row of 8 bits that are made at a time.
constexpr std::int64_t kRowPiece = 512;

using Codes = std::array<float, 16>;

// bitsandbytes' get_4bit_type("nf4"): made once by create_normal_map(offset=0.9677083).
constexpr Codes kNf4 = {-1.0f,
                        -0.6961928009986877f,
                        -0.5250730514526367f,
                        -0.39491748809814453f,
                        -0.28444138169288635f,
                        -0.18477343022823334f,
                        -0.09105003625154495f,
                        0.0f,
                        0.07958029955625534f,
                        0.16093020141124725f,
                        0.24611230194568634f,
                        0.33791524171829224f,
                        0.44070982933044434f,
                        0.5626170039176941f,
                        0.7229568362236023f,
                        1.0f};

constexpr Codes make_fp4() {
  Codes codes = {0, 0.0625f, 8, 12, 4, 6, 2, 3, -0.0f, -0.0625f, -8, -12, -4, -6, -2, -3};
  for (float& code : codes) code /= 12.0f;
  return codes;
}
constexpr Codes kFp4 = make_fp4();

// The 16 codes in order of their values, and what lies in the middle of neighbours.
struct CodeBook {
  explicit CodeBook(const Codes& values) : codes(values) {
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint8_t>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return codes[a] < codes[b]; });
    for (std::size_t i = 0; i < bounds.size(); ++i)
      bounds[i] = (codes[order[i]] + codes[order[i + 1]]) / 2;
  }
  // By how many middles are below a value: one that lies in the middle of two gets the lower code.
  void nearest(const float (&values)[kQuantizedBlock], std::uint8_t (&out)[kQuantizedBlock]) const {
    std::int32_t below[kQuantizedBlock] = {};
    for (const float bound : bounds)
      for (std::size_t i = 0; i < kQuantizedBlock; ++i) below[i] += bound < values[i] ? 1 : 0;
    for (std::size_t i = 0; i < kQuantizedBlock; ++i)
      out[i] = order[static_cast<std::size_t>(below[i])];
  }

  Codes codes;
  std::array<std::uint8_t, 16> order{};
  std::array<float, 15> bounds{};
};

const CodeBook& book_of(WeightCode code) {
  static const CodeBook nf4(kNf4), fp4(kFp4);
  TROUPE_CHECK(code == WeightCode::kNf4 || code == WeightCode::kFp4, "{}", weight_code_name(code));
  return code == WeightCode::kNf4 ? nf4 : fp4;
}

// bitsandbytes' create_dynamic_map(signed): of seven decades, each with twice as many values as the
// one below it, the middles of equal parts of [0.1, 1]; their negatives, 0 and 1.
std::vector<float> make_dynamic_map() {
  std::vector<float> values = {0.0f, 1.0f};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << decade;
    const auto power = static_cast<float>(std::pow(10.0, decade - 6));
    // torch.linspace(0.1, 1, parts + 1), in fp32: from both ends to the middle.
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto boundary = [&](int i) {
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    for (int i = 0; i < parts; ++i) {
      const float value = power * ((boundary(i) + boundary(i + 1)) / 2.0f);
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  TROUPE_CHECK(values.size() == 256);
  return values;
}

const std::vector<float>& dynamic_map() {
  static const std::vector<float> map = make_dynamic_map();
  return map;
}

// The nearest of the map; in the middle of two, the lower one.
std::uint8_t nearest_in_map(float value) {
  const std::vector<float>& map = dynamic_map();
  const auto above = std::lower_bound(map.begin(), map.end(), value);
  if (above == map.begin()) return 0;
  if (above == map.end()) return 255;
  const auto below = std::prev(above);
  const bool is_below = value - *below <= *above - value;
  return static_cast<std::uint8_t>((is_below ? below : above) - map.begin());
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign;
}

float float_at(const std::byte* data) {
  float value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

float greatest_magnitude(std::span<const float> values) {
  float greatest = 0;
  for (const float value : values) greatest = std::max(greatest, std::abs(value));
  return greatest;
}

// As torch sums a vector on a CPU in one thread (SumKernel.cpp), which gives the same bits: rows of
// four registers of eight, in levels each of which takes over what so many of the one below it
// have.
float torch_sum(std::span<const float> values) {
  constexpr std::size_t kRegister = 8, kRow = 4 * kRegister, kLevels = 4;
  std::array<std::array<float, kRow>, kLevels> sums{};
  const std::size_t rows = values.size() / kRow;
  const auto power =
      std::max<std::size_t>(4, std::bit_width(std::max<std::size_t>(rows, 1) - 1) / kLevels);
  const std::size_t step = std::size_t{1} << power;
  const auto add_row = [&](std::size_t row) {
    for (std::size_t i = 0; i < kRow; ++i) sums[0][i] += values[row * kRow + i];
  };
  std::size_t row = 0;
  while (row + step <= rows) {
    for (const std::size_t end = row + step; row < end; ++row) add_row(row);
    for (std::size_t level = 1; level < kLevels; ++level) {
      for (std::size_t i = 0; i < kRow; ++i)
        sums[level][i] += std::exchange(sums[level - 1][i], 0.0f);
      if (row & (step - 1) << level * power) break;
    }
  }
  for (; row < rows; ++row) add_row(row);
  for (std::size_t level = 1; level < kLevels; ++level)
    for (std::size_t i = 0; i < kRow; ++i) sums[0][i] += sums[level][i];
  std::size_t at = rows * kRow;
  for (; at + kRegister <= values.size(); at += kRegister)
    for (std::size_t i = 0; i < kRegister; ++i) sums[0][i] += values[at + i];
  for (std::size_t i = kRegister; i < kRow; ++i) sums[0][i % kRegister] += sums[0][i];
  float sum = 0;
  for (; at < values.size(); ++at) sum += values[at];
  for (std::size_t i = 0; i < kRegister; ++i) sum += sums[0][i];
  return sum;
}

void quantize_magnitudes(std::span<const float> absmax, const QuantizedParts& parts,
                         std::span<std::byte> out) {
  const float offset = torch_sum(absmax) / static_cast<float>(absmax.size());
  std::memcpy(out.data() + parts.offset, &offset, sizeof offset);
  std::vector<float> rest(absmax.begin(), absmax.end());
  for (float& value : rest) value -= offset;
  for (std::int64_t block = 0; block < parts.nested_blocks; ++block) {
    const auto begin = static_cast<std::size_t>(block * kNestedBlock);
    const auto of_block =
        std::span(rest).subspan(begin, std::min<std::size_t>(kNestedBlock, rest.size() - begin));
    const float greatest = greatest_magnitude(of_block);
    std::memcpy(
        out.data() + parts.nested_absmax + static_cast<std::size_t>(block) * sizeof greatest,
        &greatest, sizeof greatest);
    for (std::size_t i = 0; i < of_block.size(); ++i)
      out[parts.absmax + begin + i] =
          std::byte(greatest == 0 ? 0 : nearest_in_map(of_block[i] * (1.0f / greatest)));
  }
}

// (1 / absmax) · 127, as torch divides a number by a tensor.
void quantize_rows(std::span<const float> values, std::int64_t width, const QuantizedParts& parts,
                   std::span<std::byte> out) {
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::size_t number = 0; number < static_cast<std::size_t>(parts.blocks); ++number) {
    const auto of_row = values.subspan(number * row.size(), row.size());
    std::ranges::transform(of_row, row.begin(),
                           [](float value) { return f16_to_float(float_to_f16(value)); });
    const float absmax = greatest_magnitude(row);
    std::memcpy(out.data() + parts.absmax + number * sizeof absmax, &absmax, sizeof absmax);
    if (absmax == 0) continue;
    const float factor = (1.0f / absmax) * 127.0f;
    for (std::size_t i = 0; i < row.size(); ++i)
      out[number * row.size() + i] =
          static_cast<std::byte>(static_cast<std::int8_t>(std::nearbyint(row[i] * factor)));
  }
}

class Magnitudes {
 public:
  explicit Magnitudes(const QuantizedMatrix& matrix)
      : parts_(matrix.quantization, matrix.rows, matrix.width),
        data_(matrix.data),
        nested_(matrix.quantization.nested),
        offset_(nested_ ? float_at(data_ + parts_.offset) : 0) {}
  float of(std::int64_t block) const {
    const auto index = static_cast<std::size_t>(block);
    if (!nested_) return float_at(data_ + parts_.absmax + index * sizeof(float));
    const auto code = static_cast<std::size_t>(data_[parts_.absmax + index]);
    return dynamic_map()[code] *
               float_at(data_ + parts_.nested_absmax + index / kNestedBlock * sizeof(float)) +
           offset_;
  }

 private:
  const QuantizedParts parts_;
  const std::byte* data_;
  const bool nested_;
  const float offset_;
};

// A row's codes times this are its values.
float row_factor(float absmax) { return absmax * (1.0f / 127.0f); }

TROUPE_VECTORIZED
void scale_codes(const std::int8_t* __restrict codes, float factor, float* __restrict out,
                 std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(codes[i]) * factor;
}

// Of a matrix in 8 bits: calls put(first, values) with some of a row's values at a time.
template <typename Put>
void for_rows(const QuantizedMatrix& matrix, std::int64_t begin, std::int64_t end, const Put& put) {
  const QuantizedParts parts(matrix.quantization, matrix.rows, matrix.width);
  std::array<float, kRowPiece> values;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t row = at / matrix.width;
    const std::int64_t count = std::min({kRowPiece, end - at, (row + 1) * matrix.width - at});
    const float absmax =
        float_at(matrix.data + parts.absmax + static_cast<std::size_t>(row) * sizeof(float));
    scale_codes(reinterpret_cast<const std::int8_t*>(matrix.data) + at, row_factor(absmax),
                values.data(), count);
    put(at - begin, std::span<const float>(values).first(static_cast<std::size_t>(count)));
    at += count;
  }
}

TROUPE_INLINE void put_value(float value, float& out) { out = value; }
TROUPE_INLINE void put_value(float value, std::uint16_t& out) { out = float_to_bf16(value); }

// What the 16 codes of a block stand for. A value is rounded here, once for all that have its code.
template <typename T>
TROUPE_INLINE void make_block_table(const Codes& codes, float scale, T (&table)[16]) {
  for (std::size_t i = 0; i < codes.size(); ++i) put_value(codes[i] * scale, table[i]);
}

// `count` values, two of each byte.
template <typename T>
void expand(const Codes& codes, float scale, const std::byte* bytes, std::int64_t count, T* out) {
  T table[16];
  make_block_table(codes, scale, table);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<std::size_t>(bytes[i / 2]);
    out[i] = table[i % 2 == 0 ? byte >> 4 : byte & 15];
  }
}

#if defined(__x86_64__)
// A whole block by shuffles, which find 32 codes in a table of 16 bytes at once.
#define TROUPE_SHUFFLES __attribute__((target("avx2")))

bool has_shuffles() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

// The 64 codes of a block, one a byte: of each half of the registers 16, the codes 0 … 15 and
// 32 … 47 in `first`, the others in `second`.
TROUPE_SHUFFLES inline void load_codes(const std::byte* bytes, __m256i& first, __m256i& second) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i even = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low);
  const __m256i odd = _mm256_and_si256(pairs, low);
  first = _mm256_unpacklo_epi8(even, odd);
  second = _mm256_unpackhi_epi8(even, odd);
}

TROUPE_SHUFFLES void expand_block(const Codes& codes, float scale, const std::byte* bytes,
                                  std::uint16_t* out) {
  alignas(32) std::uint16_t table[16];
  make_block_table(codes, scale, table);
  // The lower bytes of the 16 values, and the upper ones, in both halves of a register.
  const __m256i values = _mm256_load_si256(reinterpret_cast<const __m256i*>(table));
  const __m256i bytes_of_values =
      _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_and_si256(values, _mm256_set1_epi16(255)),
                                                   _mm256_srli_epi16(values, 8)),
                               0xd8);
  const __m256i lower = _mm256_permute4x64_epi64(bytes_of_values, 0x44);
  const __m256i upper = _mm256_permute4x64_epi64(bytes_of_values, 0xee);
  __m256i found[2];
  load_codes(bytes, found[0], found[1]);
  for (int half = 0; half < 2; ++half) {
    const __m256i low = _mm256_shuffle_epi8(lower, found[half]);
    const __m256i high = _mm256_shuffle_epi8(upper, found[half]);
    const __m256i before = _mm256_unpacklo_epi8(low, high);
    const __m256i behind = _mm256_unpackhi_epi8(low, high);
    auto* const to = reinterpret_cast<__m256i*>(out + 16 * half);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(before, behind, 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(before, behind, 0x31));
  }
}

TROUPE_SHUFFLES void expand_block(const Codes& codes, float scale, const std::byte* bytes,
                                  float* out) {
  float table[16];
  make_block_table(codes, scale, table);
  const __m256 lower = _mm256_loadu_ps(table), upper = _mm256_loadu_ps(table + 8);
  __m256i found[2];
  load_codes(bytes, found[0], found[1]);
  alignas(32) std::uint8_t in_order[kQuantizedBlock];
  auto* const to = reinterpret_cast<__m256i*>(in_order);
  _mm256_store_si256(to, _mm256_permute2x128_si256(found[0], found[1], 0x20));
  _mm256_store_si256(to + 1, _mm256_permute2x128_si256(found[0], found[1], 0x31));
  for (int i = 0; i < kQuantizedBlock; i += 8) {
    const __m256i eight =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in_order + i)));
    // The fourth bit of a code, as a sign, picks the half of the table.
    const __m256 is_upper = _mm256_castsi256_ps(_mm256_slli_epi32(eight, 28));
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, eight),
                                               _mm256_permutevar8x32_ps(upper, eight), is_upper));
  }
}
#endif

template <typename T>
void dequantize_codes(const QuantizedMatrix& matrix, std::int64_t begin, std::span<T> out) {
  const std::int64_t end = begin + std::ssize(out);
  const Codes& codes = book_of(matrix.quantization.code).codes;
  const Magnitudes magnitudes(matrix);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t block = at / kQuantizedBlock;
    const std::int64_t count = std::min(end, (block + 1) * kQuantizedBlock) - at;
    const float scale = magnitudes.of(block);
    const std::byte* bytes = matrix.data + at / 2;
    T* const to = out.data() + (at - begin);
#if defined(__x86_64__)
    if (count == kQuantizedBlock && has_shuffles())
      expand_block(codes, scale, bytes, to);
    else
#endif
      expand(codes, scale, bytes, count, to);
    at += count;
  }
}

template <typename T>
void dequantize_to(const QuantizedMatrix& matrix, std::int64_t begin, std::span<T> out) {
  const std::int64_t end = begin + std::ssize(out);
  TROUPE_CHECK(begin % 2 == 0 && begin >= 0 && end <= matrix.elements(), "[{}, {}) of {} elements",
               begin, end, matrix.elements());
  if (matrix.quantization.code != WeightCode::kInt8) return dequantize_codes(matrix, begin, out);
  for_rows(matrix, begin, end, [&](std::int64_t first, std::span<const float> values) {
    if constexpr (std::is_same_v<T, float>)
      std::ranges::copy(values, out.begin() + first);
    else
      bf16_from_float(values.data(), out.data() + first, std::ssize(values));
  });
}

}  // namespace

std::optional<WeightCode> weight_code_from_name(std::string_view name) {
  if (name == "nf4") return WeightCode::kNf4;
  if (name == "fp4") return WeightCode::kFp4;
  if (name == "int8") return WeightCode::kInt8;
  return std::nullopt;
}

std::string_view weight_code_name(WeightCode code) {
  switch (code) {
    case WeightCode::kNone:
      return "none";
    case WeightCode::kNf4:
      return "nf4";
    case WeightCode::kFp4:
      return "fp4";
    case WeightCode::kInt8:
      return "int8";
  }
  return "";
}

QuantizedParts::QuantizedParts(Quantization quantization, std::int64_t rows, std::int64_t width) {
  const bool by_row = quantization.code == WeightCode::kInt8;
  const std::int64_t elements = rows * width;
  TROUPE_CHECK(!by_row || !quantization.nested, "nested magnitudes of rows");
  blocks = by_row ? rows : (elements + kQuantizedBlock - 1) / kQuantizedBlock;
  nested_blocks = quantization.nested ? (blocks + kNestedBlock - 1) / kNestedBlock : 0;
  code_bytes = static_cast<std::size_t>(by_row ? elements : (elements + 1) / 2);
  absmax = aligned(code_bytes);
  const std::size_t magnitude = quantization.nested ? 1 : sizeof(float);
  nested_absmax = absmax + aligned(static_cast<std::size_t>(blocks) * magnitude);
  offset = nested_absmax + aligned(static_cast<std::size_t>(nested_blocks) * sizeof(float));
  bytes = offset + (quantization.nested ? kPartAlign : 0);
}

void quantize(std::span<const float> values, std::int64_t width, Quantization quantization,
              std::span<std::byte> out) {
  const auto elements = static_cast<std::int64_t>(values.size());
  TROUPE_CHECK(width > 0 && elements % width == 0, "{} elements in rows of {}", elements, width);
  const QuantizedParts parts(quantization, elements / width, width);
  TROUPE_CHECK(out.size() == parts.bytes, "{} of {} bytes", out.size(), parts.bytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  if (quantization.code == WeightCode::kInt8) return quantize_rows(values, width, parts, out);
  const CodeBook& book = book_of(quantization.code);
  std::vector<float> absmax(static_cast<std::size_t>(parts.blocks));
  for (std::int64_t block = 0; block < parts.blocks; ++block) {
    const std::int64_t begin = block * kQuantizedBlock;
    const std::int64_t count = std::min(kQuantizedBlock, elements - begin);
    const auto of_block =
        values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    float& greatest = absmax[static_cast<std::size_t>(block)];
    greatest = greatest_magnitude(of_block);
    const float divisor = std::max(greatest, kAbsmaxMin);
    // A block that the end cuts is divided, and keeps the divisor; others are multiplied.
    const bool whole = count == kQuantizedBlock;
    if (!whole) greatest = divisor;
    const float factor = 1.0f / divisor;
    float scaled[kQuantizedBlock] = {};
    for (std::size_t i = 0; i < of_block.size(); ++i)
      scaled[i] = std::clamp(whole ? of_block[i] * factor : of_block[i] / divisor, -1.0f, 1.0f);
    std::uint8_t codes[kQuantizedBlock];
    book.nearest(scaled, codes);
    // Beyond an odd count stands the code of 0.
    for (std::size_t i = 0; i < of_block.size(); i += 2)
      out[static_cast<std::size_t>(begin) / 2 + i / 2] = std::byte(codes[i] << 4 | codes[i + 1]);
  }
  if (quantization.nested) return quantize_magnitudes(absmax, parts, out);
  std::memcpy(out.data() + parts.absmax, absmax.data(), absmax.size() * sizeof(float));
}

void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<float> out) {
  dequantize_to(matrix, begin, out);
}

void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<std::uint16_t> out) {
  dequantize_to(matrix, begin, out);
}

std::span<const float> code_values(WeightCode code) { return book_of(code).codes; }

std::span<const float> nested_code_values() { return dynamic_map(); }

}  // namespace troupe::train
