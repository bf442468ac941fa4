#pragma once
// Reads the rows of data files: JSON (an array, or one object a line), CSV, plain text, parquet,
// Arrow's own.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"

namespace troupe::train {

enum class FileType { kJson, kCsv, kText, kParquet, kArrow };

struct DataFiles {
  FileType type = FileType::kJson;
  std::vector<std::string> paths;  // sorted by name
};

// The files behind a data set's file_name: itself, or all files of the directory (but for hidden
// ones and README.md), or those that match it as in "part-*.jsonl", which must be of one type. A
// directory that `datasets.save_to_disk` wrote is its shards in order, one of several
// splits that of `train`. `type`: what they are, whatever their names say.
Result<DataFiles> find_data_files(FileSystem& files, const std::string& path,
                                  std::optional<FileType> type = std::nullopt);

// A row: members by column name. A CSV has strings only; a line of text is {"text": line}, empty
// lines included, as Hugging Face's datasets reads it.
using Record = json::Object;

// `where` names file and line (or item) for messages. Returning a failure ends the reading with it.
using RecordVisitor = std::function<Status(const Record& record, const std::string& where)>;

// Visits the rows of all files in order, at most `records_max` (negative: all), a part of a file
// being in memory at a time. Files that are compressed by gzip or zstd are read as what is in them;
// a byte order mark and blank lines are passed over. Parquet and Arrow: train/arrow/arrow_rows.h.
// `piece_bytes`: how much of a file is read at a time.
Status read_records(FileSystem& files, const DataFiles& data, std::int64_t records_max,
                    const RecordVisitor& visit, std::size_t piece_bytes = std::size_t{1} << 20);

}  // namespace troupe::train
