// Data files and entries of dataset_info.json become the turns that LLaMA-Factory makes of them, or
// fail where it fails.

#include <algorithm>

#include "tests/train/data/lf_golden.h"
#include "train/data/load_conversations.h"

namespace troupe::train {
namespace {

std::string role_name(Role role) {
  return role == Role::kUser        ? "user"
         : role == Role::kAssistant ? "assistant"
         : role == Role::kFunction  ? "function"
                                    : "observation";
}

using Turns = std::vector<std::pair<std::string, std::string>>;

// A row in one form: the question's turns and the answers, system, tools.
struct Aligned {
  Turns prompt, response;
  std::string system, tools;
  friend bool operator==(const Aligned&, const Aligned&) = default;
};

Aligned aligned(const json::Value& told) {
  const auto turns = [&](const char* key) {
    Turns out;
    for (const auto& message : told.at(key).as_array())
      out.emplace_back(text_of(message, "role"), text_of(message, "content"));
    return out;
  };
  return {turns("_prompt"), turns("_response"), text_of(told, "_system"), text_of(told, "_tools")};
}

Aligned aligned(const Conversation& made, const std::string& stage) {
  Aligned out{.system = made.system, .tools = made.tools};
  for (const auto& message : made.messages)
    out.prompt.emplace_back(role_name(message.role), message.content);
  if (out.prompt.size() % 2 == 1) return out;  // pt
  out.response.push_back(out.prompt.back());
  out.prompt.pop_back();
  if (stage == "rm")
    out.response.emplace_back(role_name(made.rejected->role), made.rejected->content);
  if (stage == "kto") {
    out.response.emplace_back("assistant", "");
    if (!*made.desirable) std::swap(out.response[0], out.response[1]);
  }
  return out;
}

// The rows that LLaMA-Factory's processor of the stage keeps.
std::vector<Aligned> kept(const json::Value& rows, const std::string& stage) {
  std::vector<Aligned> out;
  for (const auto& row : rows.as_array()) {
    auto one = aligned(row);
    const bool fits =
        stage == "pt" || (one.prompt.size() % 2 == 1 &&
                          (stage == "sft" ? one.response.size() == 1 : one.response.size() >= 2));
    if (fits) out.push_back(std::move(one));
  }
  return out;
}

Result<std::vector<Aligned>> made(FileSystem& files, const DataOptions& options,
                                  const std::string& stage) {
  std::vector<Conversation> rows;
  if (stage == "sft" || stage == "pt") {
    NumpyGlobal random(options.seed);
    EncodeReport report;
    rows = TROUPE_TRY(load_conversations(files, options, options.dataset, random, report));
  } else {
    const auto entry =
        TROUPE_TRY(read_dataset_info(files, options.dataset_dir, options.dataset))[0];
    if (entry.ranking != (stage == "rm"))
      return error(Code::kInvalidArgument, "not applicable in the current training stage");
    const auto data =
        TROUPE_TRY(find_data_files(files, join_path(options.dataset_dir, entry.file_name)));
    TROUPE_RETURN_IF_ERROR(read_records(files, data, -1, [&](const Record& record, const auto&) {
      auto row = convert_record(record, entry, true);
      if (row) rows.push_back(std::move(*row));
      return row.status();
    }));
  }
  std::vector<Aligned> out;
  for (const auto& row : rows) {
    if (row.fault.empty()) out.push_back(aligned(row, stage));
  }
  return out;
}

void write_files(DataFolder& folder, const json::Value& test) {
  for (const auto& [name, body] : test.at("files").as_object()) {
    const std::string path(name);
    if (const auto slash = path.find('/'); slash != std::string::npos)
      REQUIRE(folder.files.create_directories(folder.directory.file(path.substr(0, slash))).ok());
    if (const auto hex = json::find_string(body, "hex")) {
      std::string bytes;
      for (std::size_t i = 0; i < hex->size(); i += 2)
        bytes.push_back(static_cast<char>(std::stoi(hex->substr(i, 2), nullptr, 16)));
      folder.write(path, bytes);
    } else if (body.is_string()) {
      folder.write(path, std::string(body.as_string()));
    } else {
      folder.write(path, json::write(body));
    }
  }
  if (!test.at("info").is_null()) folder.write("dataset_info.json", json::write(test.at("info")));
}

// Where LLaMA-Factory fails and rows are read here, and why.
bool reads_more(const std::string& name) {
  static const std::set<std::string> kNames = {
      "alpaca mixed types",  // a row whose answer is no text is left out, and said
      "alpaca mixed types in jsonl",
      "alpaca missing column in all rows",  // the default columns need not be there
      "csv numbers and NA",                 // the fields of a CSV are texts
      "json BOM",
      "jsonl timestamps",  // texts stay texts
      "folder with different columns",
      "folder with other file",  // README.md, which a hub shows, is no data
      "gz",                      // decompressed whatever its name
  };
  return kNames.contains(name);
}

// What is left to others: images, streams, and all rows dropped, which is a failure here.
bool differs(const std::string& name) {
  return name == "images column" || name.starts_with("streaming") || name == "max_samples 0" ||
         name == "val_size with eval_dataset";
}

TEST_CASE("rows equal LLaMA-Factory's") {
  int compared = 0;
  for (const auto& test : golden_lines("formatting")) {
    const auto name = text_of(test, "name");
    if (differs(name)) continue;
    CAPTURE(name);
    const auto stage = json::find_string(test, "stage").value_or("sft");
    DataFolder folder;
    write_files(folder, test);
    auto options = folder.options(
        stage == "pt" ? DataOptions::Stage::kPretrain : DataOptions::Stage::kSupervised, {});
    auto names = text_of(test.at("args"), "dataset");
    std::erase(names, ' ');
    for (std::string_view rest = names; !rest.empty();) {
      options.dataset.emplace_back(rest.substr(0, rest.find(',')));
      rest.remove_prefix(std::min(options.dataset.back().size() + 1, rest.size()));
    }
    options.max_samples = json::find_integer(test.at("args"), "max_samples");
    options.seed = static_cast<std::uint32_t>(json::find_integer(test, "seed").value_or(42));
    auto rows = made(folder.files, options, stage);
    ++compared;
    const auto* told = json::find(test, "aligned");
    const auto* raised = json::find(test, "raised");
    auto expected = told ? kept(*told, stage) : std::vector<Aligned>();
    if (raised && !raised->is_null()) {
      if (!reads_more(name)) CHECK_FALSE(rows.ok());
      if (reads_more(name)) CHECK(rows.ok());
      continue;
    }
    if (expected.empty()) {  // LLaMA-Factory's run ends later
      if (rows) CHECK(rows->empty());
      continue;
    }
    REQUIRE_MESSAGE(rows.ok(), rows.status().to_string());
    REQUIRE(rows->size() == expected.size());
    if (name.starts_with("folder")) {  // there in the order in which the system lists them
      std::ranges::sort(*rows, {}, &Aligned::prompt);
      std::ranges::sort(expected, {}, &Aligned::prompt);
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(rows->at(i).prompt == expected[i].prompt);
      CHECK(rows->at(i).response == expected[i].response);
      CHECK(rows->at(i).system == expected[i].system);
      CHECK(rows->at(i).tools == expected[i].tools);
    }
  }
  CHECK((compared == 0 || compared > 100));
}

}  // namespace
}  // namespace troupe::train
