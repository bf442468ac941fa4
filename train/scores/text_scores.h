#pragma once
// ROUGE and BLEU of answers, as LLaMA-Factory's ComputeSimilarity has them: rouge_chinese 1.0.3 on
// jieba's words, NLTK's sentence_bleu with its third smoothing on characters.

#include <optional>
#include <span>
#include <string_view>

#include "train/scores/word_cutter.h"

namespace troupe::train {

// In percent, rounded to four digits.
struct RougeScores {
  double rouge_1 = 0, rouge_2 = 0, rouge_l = 0;
};

// F-scores over sets of words and of pairs of them, and over the longest common subsequence of
// words. 0 where one of the texts has no word.
RougeScores rouge_scores(const WordCutter& cutter, std::string_view answer,
                         std::string_view expected);

// BLEU-4 of the characters, in percent, rounded to four digits.
double bleu_score(std::string_view answer, std::string_view expected);

// numpy.mean of float64, to the last bit. `values` are not empty.
double numpy_mean(std::span<const double> values);

}  // namespace troupe::train
