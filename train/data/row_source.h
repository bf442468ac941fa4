#pragma once
// Data sets that are named by their paths and say themselves how their rows become samples: an
// entry of troupe.datasets. The types and members are Axolotl's.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "train/data/records.h"

namespace troupe::train {

// Which ends of turns are trained: those of all turns, those of trained turns, the last one's,
// none.
enum class TurnEnds { kAll, kTurn, kLast, kNone };  // "all", "turn", "last", "none"

struct RowSource {
  std::string path;                     // a file or a folder
  std::vector<std::string> data_files;  // of the folder; none: all of it
  std::string split = "train";          // with a slice: train[:20%]
  std::optional<FileType> ds_type;      // of the files; none: as their names say
  // alpaca[:instruct|chat|chatml|phi], completion, input_output, chat_template, pretrain, text,
  // text_or_messages
  std::string type;
  std::string field = "text";    // completion, pretrain, text: the column of the text
  bool train_on_inputs = false;  // prompts are trained, too

  // chat_template.
  std::string chat_template = "tokenizer_default";
  std::string chat_template_jinja;  // the text, where chat_template is jinja
  std::string field_messages = "messages", field_system = "system";
  std::string role_column = "role", content_column = "content";  // of a message
  std::map<std::string, std::string> roles;                      // as written → as rendered
  std::vector<std::string> roles_to_train = {"assistant"};
  std::string message_field_training;  // the column that says whether a turn is trained; or empty
  bool drop_system_message = false;
  TurnEnds train_on_eos = TurnEnds::kTurn;
  std::optional<TurnEnds> train_on_eot;                // default: train_on_eos
  std::optional<std::vector<std::string>> eot_tokens;  // default: the end token
};

// `train_on_inputs` where the entry does not say. Unknown members and wrong values are
// kInvalidArgument and name the member.
Result<RowSource> parse_row_source(const json::Value& entry, bool train_on_inputs);

// The files of the split, and which of their rows. kNotFound where the path is nothing here.
struct SplitRows {
  DataFiles files;
  // Of the slice: of so many percent, or numbers of rows (negative ones from the end).
  struct Bound {
    std::int64_t value = 0;
    bool percent = false;
  };
  std::optional<Bound> begin, end;
  bool whole_percents = false;  // a percent has as many rows as another: pct1_dropremainder

  // [first, last) of `count` rows.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t count) const;
};
// The name in front of the slice; the slice, where there is one, into `out`.
Result<std::string> read_slice(std::string_view split, SplitRows& out);
Result<SplitRows> find_split(FileSystem& files, const RowSource& source);

}  // namespace troupe::train
