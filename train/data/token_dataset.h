#pragma once
// Samples ready for training, in compact storage, and batches of them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/tokenizer/bpe_model.h"

namespace troupe::train {

// A label that is not trained on.
inline constexpr std::int32_t kIgnoredLabel = -100;

// Samples are token ids with labels (Hugging Face's form, not shifted: the label of a position is
// what the position before it is to say), and in packed SFT the lengths of the parts they consist
// of. Append-only; const calls from any threads.
class TokenDataset {
 public:
  enum class Kind {
    kPretrain,    // labels are the ids, but for the padding token
    kSupervised,  // labels stored; batches are padded to their longest sample
    kPacked,      // labels and parts stored; position ids restart at every part
    kNeatPacked,  // besides, parts do not attend to each other (segment ids)
    kPairs,       // two parts, apart as those: an answer that is better than the other
    // An answer, and to the same question one of another row, which a divergence is estimated from;
    // an answer that is good has a third part, which is empty.
    kFeedback,
  };
  TokenDataset(Kind kind, TokenId pad_id) : kind_(kind), pad_id_(pad_id) {}

  // All samples, as arrays.
  struct Columns {
    std::span<const TokenId> ids;
    std::span<const std::int32_t> labels;      // as many as ids; none in kPretrain
    std::span<const std::uint64_t> ends;       // of each sample in ids
    std::span<const std::int32_t> parts;       // of kinds that have them
    std::span<const std::uint64_t> part_ends;  // of each sample in parts
  };
  // Samples that lie elsewhere, in a mapped file, and are not copied: `owner` keeps them there, and
  // nothing can be appended. kDataLoss where the arrays do not fit together.
  static Result<TokenDataset> over(Kind kind, TokenId pad_id, const Columns& columns,
                                   std::shared_ptr<const void> owner);
  Columns columns() const;
  bool is_mapped() const { return owner_ != nullptr; }
  // The samples' hash (sample_stream.h), where it was worked out when they were written.
  void set_hash(std::uint64_t xxh3) { xxh3_ = xxh3; }
  std::optional<std::uint64_t> known_hash() const { return xxh3_; }

  Kind kind() const { return kind_; }
  TokenId pad_id() const { return pad_id_; }
  std::int64_t size() const { return static_cast<std::int64_t>(columns().ends.size()); }
  // Tokens of all samples, the padding of packed ones included.
  std::int64_t token_count() const { return static_cast<std::int64_t>(columns().ids.size()); }

  // kPretrain.
  void append(std::span<const TokenId> ids);
  // The others; labels.size() == ids.size(). `part_lengths`: of packed samples, without the
  // padding.
  void append(std::span<const TokenId> ids, std::span<const std::int32_t> labels,
              std::span<const std::int32_t> part_lengths = {});
  // All samples of a data set of the same kind.
  void append(const TokenDataset& samples);

  // Spans into the data set, valid until the next append. `labels` is empty in kPretrain.
  std::span<const TokenId> ids(std::int64_t sample) const;
  std::span<const std::int32_t> labels(std::int64_t sample) const;
  std::span<const std::int32_t> part_lengths(std::int64_t sample) const;

  // Of each label of all samples its log-probability by a reference model, as many as ids; null:
  // none are known. Nothing can be appended then.
  using Reference = std::shared_ptr<const std::vector<float>>;
  void set_reference(Reference log_probabilities);
  const Reference& reference() const { return reference_; }
  // Empty where none are known.
  std::span<const float> reference(std::int64_t sample) const;

 private:
  std::pair<std::size_t, std::size_t> range(std::int64_t sample) const;

  Kind kind_;
  TokenId pad_id_;
  std::vector<TokenId> ids_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> ends_;  // of each sample in ids_
  std::vector<std::int32_t> parts_;
  std::vector<std::uint64_t> part_ends_;  // of each sample in parts_
  Columns mapped_;                        // instead of these, with an owner
  std::shared_ptr<const void> owner_;
  std::optional<std::uint64_t> xxh3_;
  Reference reference_;
};

// kDataLoss where an id or a label of these samples is none of `vocab_size` tokens: what is mapped
// may have been damaged since it was written.
Status check_tokens(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                    std::int64_t vocab_size);

// (rows, length) row-major arrays, the fields in the order of the model's micro-batch.
struct TokenBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::vector<std::int32_t> ids;           // (rows, length)
  std::vector<std::int32_t> labels;        // (rows, length), kIgnoredLabel where not trained
  std::vector<std::int32_t> position_ids;  // (rows, length), or empty: 0, 1, 2, … in each row
  std::vector<std::int32_t> segment_ids;   // (rows, length), or empty; parts 1…n, padding 0
  // (rows, length), or empty: each token's sample and place in it, as add_places() says.
  std::vector<std::int32_t> samples, places;
  std::vector<float> reference;         // (rows, length), of each label, or empty: of the data set
  std::vector<std::uint8_t> desirable;  // of kFeedback: whether each sequence is a good answer
};

// Pads on the right to the longest sample, kSupervised to a multiple of 8: the arrays that
// LLaMA-Factory's collators make.
TokenBatch collate(const TokenDataset& dataset, std::span<const std::uint32_t> samples);

// The same samples without their padding: what a model is fed, as padding changes nothing of any
// other token and costs as much. Samples of one length are rows; else all lie in one row, one
// behind the other, positions beginning anew and segments keeping them apart as rows would. The
// label of a sample's first token, which counts in no row, is kIgnoredLabel there.
TokenBatch collate_ragged(const TokenDataset& dataset, std::span<const std::uint32_t> samples);

// One answer of each sample of kFeedback, each a segment of one row: the row's own, which are
// judged, or those of other rows.
enum class Answers { kOwn, kOfOthers };
TokenBatch collate_answers(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                           Answers answers);

// Adds to what collate_ragged() made of `samples` which of them each token is of. `first`: what is
// added to their numbers.
void add_places(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                TokenBatch& batch, std::int64_t first = 0);

// Labels of a collated batch that are not kIgnoredLabel, and those of them that count after the
// shift: the ones at positions 1… of a row.
std::int64_t count_labels(const TokenBatch& batch);
std::int64_t count_target_tokens(const TokenBatch& batch);

// What a batch of these samples would have, without making it: equal to collate() followed by
// count_labels(), and to collate()'s length. So a rank knows the whole step's counts and makes only
// its own batches. A step's loss is divided by its labels, as transformers divides by
// num_items_in_batch: counted before the shift, with those that no token predicts.
std::int64_t label_count(const TokenDataset& dataset, std::span<const std::uint32_t> samples);
std::int64_t collated_length(const TokenDataset& dataset, std::span<const std::uint32_t> samples);
// Tokens of a sample without the padding of packed ones, at least 1, and of several together: what
// collate_ragged() makes.
std::int64_t real_length(const TokenDataset& dataset, std::uint32_t sample);
std::int64_t real_tokens(const TokenDataset& dataset, std::span<const std::uint32_t> samples);
// Whether collate_ragged() makes as many rows of any samples as there are samples.
bool equal_lengths(const TokenDataset& dataset);
// The most tokens that attend to each other: a part's where parts are apart.
std::int64_t longest_sequence(const TokenDataset& dataset);
// Of samples that have parts; at least 1.
std::int64_t longest_part(const TokenDataset& dataset);
// The length that any batch of collate() can have at most, and any sample; at least 1.
std::int64_t longest_collated_length(const TokenDataset& dataset);

}  // namespace troupe::train
