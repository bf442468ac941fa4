#pragma once
// Reads the rows of one or several data sets and mixes them.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/data/build_dataset.h"
#include "train/data/conversation.h"
#include "train/data/encode_samples.h"
#include "train/data/kept_rows.h"
#include "train/data/numpy_random.h"

namespace troupe::train {

// The conversations of the named data sets, mixed by options.mix_strategy, those with a fault among
// them. `report` counts rows and faults. num_samples draws from `random`. `scratch`: the folder
// where they are kept (kept_rows.h).
Result<OrderedRows> keep_conversations(FileSystem& files, const DataOptions& options,
                                       const std::vector<std::string>& names, NumpyGlobal& random,
                                       EncodeReport& report, const std::string& scratch);
// All of them in memory.
Result<std::vector<Conversation>> load_conversations(FileSystem& files, const DataOptions& options,
                                                     const std::vector<std::string>& names,
                                                     NumpyGlobal& random, EncodeReport& report);

// The same rows in the same order, each given to `take` as soon as it is read, so that none need be
// kept; a failure of `take` ends the reading with it. False, and nothing was read, where their
// order is known only when all have been read: a split's part, num_samples, interleaving.
using RowTaker = std::function<Status(Conversation row)>;
Result<bool> stream_conversations(FileSystem& files, const DataOptions& options,
                                  const std::vector<std::string>& names, EncodeReport& report,
                                  const RowTaker& take);

// The rows of one data set as they are read, before any are picked.
Status visit_rows(FileSystem& files, const DataOptions& options,
                  const DatasetAttributes& attributes, EncodeReport& report, const RowTaker& take);
// Why its rows cannot be given as they are read; empty: they can.
std::string picked_by(const DatasetAttributes& attributes);

// The same for the first `rows` rows of each data set alone: what is wrong with its entry, its
// files and these rows. The number of rows that the data sets have together, where that is known
// then.
Result<std::optional<std::size_t>> look_at_conversations(FileSystem& files,
                                                         const DataOptions& options,
                                                         const std::vector<std::string>& names,
                                                         std::int64_t rows);

// What interleaving takes: (data set, row) in order. Without shares one row of each in turn, with
// them of a set that is drawn: "interleave_under" until the first set ends, "interleave_over" until
// all have ended, shorter ones beginning again, "interleave_once" until all have ended, each row
// once. A failure of `take` ends it.
using RowPlaceTaker = std::function<Status(std::size_t set, std::size_t row)>;
Status interleave(const std::vector<std::size_t>& sizes, const std::string& strategy,
                  const std::vector<double>& shares, std::uint32_t seed, const RowPlaceTaker& take);

}  // namespace troupe::train
