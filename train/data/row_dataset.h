#pragma once
// Data sets of troupe.datasets as samples, in Axolotl's order: every row becomes samples, data sets
// are joined, shuffled once (by NumPy's generator, as datasets does), samples of other lengths are
// dropped, and the last ones are kept for evaluation.

#include "train/data/build_dataset.h"
#include "train/data/kept_rows.h"

namespace troupe::train {

// Parts of prepare_module() and make_samples(), for options.rows.
Result<DatasetModule> prepare_row_module(const DataOptions& options, const Tokenizer& tokenizer);
Status make_row_samples(FileSystem& files, const DataOptions& options, const SampleSinks& sinks,
                        const std::string& scratch, DatasetModule& out);

// For pre-training: the texts of data sets of type text, in order.
Result<OrderedRows> keep_row_texts(FileSystem& files, const DataOptions& options,
                                   const json::Array& datasets, EncodeReport& report,
                                   const std::string& scratch);

// What is wrong with the entries, their files and the first `rows` rows of each; without a
// tokenizer, the entries and files alone.
Status look_at_row_datasets(FileSystem& files, const DataOptions& options,
                            const std::optional<Tokenizer>& tokenizer, std::int64_t rows);

// The files of all data sets to train on, in order.
Result<std::vector<std::string>> row_dataset_files(FileSystem& files, const json::Array& datasets);

}  // namespace troupe::train
