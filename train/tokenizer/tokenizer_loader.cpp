// Reading tokenizer.json, tokenizer_config.json, special_tokens_map.json; writing them again.

#include <algorithm>
#include <set>
#include <tuple>

#include "train/tokenizer/sentence_piece.h"
#include "train/tokenizer/tokenizer_core.h"

namespace troupe::train {
namespace {

struct Files {
  std::string tokenizer = "tokenizer.json", config = "tokenizer_config.json",
              special = "special_tokens_map.json";
};

Result<json::Value> parse_file(std::string_view text, const std::string& name) {
  json::ParseOptions options;
  options.bytes_max = limits::kJsonFileBytesMax;
  options.reject_duplicate_keys = true;
  return json::parse(text, name, options);
}

Result<TokenMap> read_vocabulary(const json::Value& model) {
  const auto* vocab = json::find(model, "vocab");
  if (!vocab || !vocab->is_object()) {
    return error(Code::kInvalidArgument, "model.vocab is missing or no object");
  }
  TokenMap out;
  out.reserve(vocab->get_object().size());
  // Pairs: a table by id would be as large as the greatest id.
  std::vector<std::pair<TokenId, std::string_view>> by_id;
  by_id.reserve(vocab->get_object().size());
  for (const auto& member : vocab->get_object()) {
    const std::string_view token(member.key().data(), member.key().size());
    const auto id = member.value().is_int64() ? member.value().get_int64() : -1;
    if (id < 0 || id >= kVocabularySizeMax) {
      return error(Code::kInvalidArgument, "model.vocab['{}'] must be a number in [0, {})", token,
                   kVocabularySizeMax);
    }
    by_id.emplace_back(static_cast<TokenId>(id), token);
    out.emplace(token, static_cast<TokenId>(id));
  }
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  // Nearly every file has them in order.
  if (!std::is_sorted(by_id.begin(), by_id.end(), before))
    std::stable_sort(by_id.begin(), by_id.end(), before);
  const auto twice = std::adjacent_find(
      by_id.begin(), by_id.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != by_id.end()) {
    return error(Code::kInvalidArgument, "model.vocab gives the id {} to '{}' and to '{}'",
                 twice->first, twice->second, std::next(twice)->second);
  }
  return out;
}

Result<std::vector<std::pair<std::string, std::string>>> read_merges(const json::Value& model) {
  const auto* merges = json::find(model, "merges");
  if (!merges || !merges->is_array()) {
    return error(Code::kInvalidArgument, "model.merges is missing or no array");
  }
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges->get_array().size());
  for (const auto& merge : merges->get_array()) {
    const auto* pair = merge.if_array();
    if (const auto* text = merge.if_string()) {
      const std::string_view both(text->data(), text->size());
      const auto space = both.find(' ');
      if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos) {
        out.emplace_back(both.substr(0, space), both.substr(space + 1));
        continue;
      }
    } else if (pair && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      const auto &left = (*pair)[0].get_string(), &right = (*pair)[1].get_string();
      out.emplace_back(std::string(left.data(), left.size()),
                       std::string(right.data(), right.size()));
      continue;
    }
    return error(Code::kInvalidArgument, "model.merges[{}] must be \"left right\" or two strings",
                 out.size());
  }
  return out;
}

Result<TokenModel> read_bpe(const json::Value& model, bool byte_level) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto text = json::find_string(model, key); text && !text->empty()) {
      return error(Code::kUnsupported,
                   "model.{}='{}' is not supported: use a tokenizer where it is null", key, *text);
    }
  }
  if (const auto dropout = json::find_number(model, "dropout"); dropout && *dropout != 0) {
    return error(Code::kUnsupported, "model.dropout={} is not supported: set it to null", *dropout);
  }
  BpeOptions options;
  options.byte_level = byte_level;
  options.byte_fallback = json::find_bool(model, "byte_fallback").value_or(false);
  options.fuse_unk = json::find_bool(model, "fuse_unk").value_or(false);
  options.ignore_merges = json::find_bool(model, "ignore_merges").value_or(false);
  options.unk_token = json::find_string(model, "unk_token").value_or("");
  auto vocabulary = TROUPE_TRY(read_vocabulary(model));
  const auto merges = TROUPE_TRY(read_merges(model));
  return TokenModel(TROUPE_TRY(BpeModel::make(std::move(vocabulary), merges, std::move(options))));
}

Result<TokenModel> read_unigram(const json::Value& model) {
  const auto* vocab = json::find(model, "vocab");
  if (!vocab || !vocab->is_array() ||
      std::ssize(vocab->get_array()) > std::ptrdiff_t{kVocabularySizeMax}) {
    return error(Code::kInvalidArgument, "model.vocab must be an array of at most {} tokens",
                 kVocabularySizeMax);
  }
  std::vector<std::pair<std::string, double>> tokens;
  tokens.reserve(vocab->get_array().size());
  for (const auto& entry : vocab->get_array()) {
    const auto* pair = entry.if_array();
    if (!pair || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number()) {
      return error(Code::kInvalidArgument, "model.vocab[{}] must be a token and its score",
                   tokens.size());
    }
    const auto& token = (*pair)[0].get_string();
    tokens.emplace_back(std::string(token.data(), token.size()), (*pair)[1].to_number<double>());
  }
  return TokenModel(TROUPE_TRY(
      UnigramModel::make(std::move(tokens), json::find_integer(model, "unk_id").value_or(-1),
                         json::find_bool(model, "byte_fallback").value_or(false))));
}

Result<TokenModel> read_word_piece(const json::Value& model) {
  WordPieceOptions options;
  const auto text = [&](const char* key, std::string& value) {
    if (auto found = json::find_string(model, key)) value = std::move(*found);
  };
  text("unk_token", options.unk_token);
  text("continuing_subword_prefix", options.continuing_subword_prefix);
  options.max_input_chars_per_word = json::find_integer(model, "max_input_chars_per_word")
                                         .value_or(options.max_input_chars_per_word);
  auto vocabulary = TROUPE_TRY(read_vocabulary(model));
  return TokenModel(TROUPE_TRY(WordPieceModel::make(std::move(vocabulary), std::move(options))));
}

Result<TokenModel> read_model(const json::Value& root, bool byte_level) {
  const auto* model = json::find(root, "model");
  if (!model || !model->is_object()) {
    return error(Code::kInvalidArgument, "model is missing or no object");
  }
  const auto type = json::find_string(*model, "type").value_or("");
  // Files of before 2021 leave the type out; then merges tell a BPE.
  if (type == "BPE" || (type.empty() && json::find(*model, "merges")))
    return read_bpe(*model, byte_level);
  if (byte_level && (type == "Unigram" || type == "WordPiece")) {
    return error(Code::kUnsupported,
                 "model.type={} behind a pre_tokenizer with ByteLevel is not supported: use one of "
                 "type BPE",
                 type);
  }
  if (type == "Unigram") return read_unigram(*model);
  if (type == "WordPiece") return read_word_piece(*model);
  return error(Code::kUnsupported,
               "model.type={} is not supported: use a tokenizer of type BPE (GPT-2, Llama, "
               "Mistral, Qwen, …), Unigram or WordPiece",
               type.empty() ? "(missing)" : type);
}

Result<std::vector<AddedToken>> read_added_tokens(const json::Value& root,
                                                  const TokenMap& vocabulary) {
  std::vector<AddedToken> out;
  const auto* list = json::find(root, "added_tokens");
  if (!list || list->is_null()) return out;
  if (!list->is_array()) return error(Code::kInvalidArgument, "added_tokens must be an array");
  // Whose the ids of added tokens are.
  std::unordered_map<TokenId, std::optional<std::string>> by_id;
  for (const auto& value : list->get_array()) {
    if (const auto id = json::find_integer(value, "id"))
      by_id.emplace(static_cast<TokenId>(*id), std::nullopt);
  }
  for (const auto& [token, id] : vocabulary) {
    const auto wanted = by_id.find(id);
    if (wanted != by_id.end()) wanted->second = token;
  }
  std::set<std::string> contents;
  for (const auto& value : list->get_array()) {
    auto token = TROUPE_TRY(AddedToken::from_json(value, out.size()));
    auto& owner = by_id[token.id];
    if (!owner) owner = token.content;
    const auto known = vocabulary.find(token.content);
    if (!contents.insert(token.content).second ||
        (known != vocabulary.end() && known->second != token.id)) {
      return error(Code::kInvalidArgument, "added_tokens[{}]: '{}' has more than one id",
                   out.size(), token.content);
    }
    if (*owner != token.content) {
      return error(Code::kInvalidArgument, "added_tokens[{}]: the id {} is given to '{}' and '{}'",
                   out.size(), token.id, *owner, token.content);
    }
    out.push_back(std::move(token));
  }
  return out;
}

// The special tokens that TemplateProcessing puts around one sequence.
Status read_template(const json::Value& value, const std::string& key, std::size_t id_count,
                     std::vector<TokenId>& before, std::vector<TokenId>& behind) {
  const auto* single = json::find(value, "single");
  if (!single || !single->is_array()) {
    return error(Code::kInvalidArgument, "{}.single is missing or no array", key);
  }
  bool seen_sequence = false;
  for (const auto& item : single->get_array()) {
    if (json::find(item, "Sequence")) {
      if (seen_sequence) {
        return error(Code::kInvalidArgument, "{}.single has the sequence twice", key);
      }
      seen_sequence = true;
      continue;
    }
    const auto* special = json::find(item, "SpecialToken");
    const auto name = special ? json::find_string(*special, "id") : std::nullopt;
    const auto* table = json::find(value, "special_tokens");
    const auto* entry = name && table ? json::find(*table, *name) : nullptr;
    const auto* ids = entry ? json::find(*entry, "ids") : nullptr;
    if (!ids || !ids->is_array()) {
      return error(Code::kInvalidArgument, "{}.single names '{}', which {}.special_tokens lacks",
                   key, name.value_or("?"), key);
    }
    for (const auto& id : ids->get_array()) {
      if (!id.is_int64() || id.get_int64() < 0 ||
          static_cast<std::uint64_t>(id.get_int64()) >= id_count) {
        return error(Code::kInvalidArgument, "{}.special_tokens['{}'].ids: {} is not in [0, {})",
                     key, *name, json::write(id), id_count);
      }
      (seen_sequence ? behind : before).push_back(static_cast<TokenId>(id.get_int64()));
    }
  }
  if (!seen_sequence) return error(Code::kInvalidArgument, "{}.single has no sequence", key);
  return {};
}

// cls and sep of BertProcessing and RobertaProcessing: ["[CLS]", 101].
Status read_bert_processing(const json::Value& value, const std::string& key, std::size_t id_count,
                            std::vector<TokenId>& before, std::vector<TokenId>& behind) {
  for (const auto& [name, list] : {std::pair("cls", &before), std::pair("sep", &behind)}) {
    const auto* entry = json::find(value, name);
    const auto* pair = entry ? entry->if_array() : nullptr;
    const auto id =
        pair && pair->size() == 2 && (*pair)[1].is_int64() ? (*pair)[1].get_int64() : -1;
    if (id < 0 || static_cast<std::uint64_t>(id) >= id_count) {
      return error(Code::kInvalidArgument, "{}.{} must be a token and its id in [0, {})", key, name,
                   id_count);
    }
    list->push_back(static_cast<TokenId>(id));
  }
  return {};
}

Status read_post_processor(const json::Value* value, const std::string& key, std::size_t id_count,
                           int depth, std::vector<TokenId>& before, std::vector<TokenId>& behind) {
  if (!value || value->is_null()) return {};
  const auto type = json::find_string(*value, "type").value_or("(missing)");
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") return read_template(*value, key, id_count, before, behind);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return read_bert_processing(*value, key, id_count, before, behind);
  const auto* list = json::find(*value, "processors");
  if (type == "Sequence" && list && list->is_array() && depth < 8) {
    for (const auto& item : list->get_array()) {
      std::vector<TokenId> inner_before, inner_behind;
      TROUPE_RETURN_IF_ERROR(read_post_processor(&item, key + ".processors", id_count, depth + 1,
                                                 inner_before, inner_behind));
      before.insert(before.begin(), inner_before.begin(), inner_before.end());
      behind.insert(behind.end(), inner_behind.begin(), inner_behind.end());
    }
    return {};
  }
  return error(Code::kUnsupported,
               "{}.type={} is not supported: use ByteLevel, TemplateProcessing, BertProcessing, "
               "RobertaProcessing or a Sequence of these",
               key, type);
}

// A special token is a string, or an object with `content`.
std::optional<std::string> special_token(const json::Value& config, const json::Value& map,
                                         const char* key) {
  for (const auto* file : {&config, &map}) {
    const auto* value = json::find(*file, key);
    if (!value || value->is_null()) continue;
    if (auto text = json::find_string(*file, key)) return text;
    if (auto text = json::find_string(*value, "content")) return text;
  }
  return std::nullopt;
}

bool adds_bos_by_class(const json::Value& config) {
  const auto name = json::find_string(config, "tokenizer_class").value_or("");
  for (const char* known : {"LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer"}) {
    if (name == known || name == std::string(known) + "Fast") return true;
  }
  return false;
}

constexpr const char* kToolUseFile = "additional_chat_templates/tool_use.jinja";

// A text, which is `default`, or a list of named ones.
std::optional<std::string> chat_template_of(const json::Value& config, std::string_view name) {
  const auto* value = json::find(config, "chat_template");
  if (value == nullptr || !value->is_array())
    return name == "default" ? json::find_string(config, "chat_template") : std::nullopt;
  for (const auto& one : value->get_array()) {
    if (json::find_string(one, "name") == name) return json::find_string(one, "template");
  }
  return std::nullopt;
}

}  // namespace

Result<Tokenizer> TokenizerLoader::from_text(std::string_view tokenizer_json,
                                             std::string_view tokenizer_config_json,
                                             std::string_view special_tokens_map_json,
                                             std::optional<std::string> chat_template,
                                             const std::string& name, const char* main_file) {
  const Files names{join_path(name, main_file), join_path(name, "tokenizer_config.json"),
                    join_path(name, "special_tokens_map.json")};
  const auto root = TROUPE_TRY(parse_file(tokenizer_json, names.tokenizer));
  json::Value config = json::Object(), map = json::Object();
  if (!tokenizer_config_json.empty()) {
    config = TROUPE_TRY(parse_file(tokenizer_config_json, names.config));
  }
  if (!special_tokens_map_json.empty()) {
    map = TROUPE_TRY(parse_file(special_tokens_map_json, names.special));
  }

  Tokenizer out;
  const auto build = [&]() -> Status {
    if (!root.is_object()) return error(Code::kInvalidArgument, "the file is no JSON object");
    auto normalizer = TROUPE_TRY(Normalizer::from_json(json::find(root, "normalizer")));
    auto pre_tokenizer = TROUPE_TRY(PreTokenizer::from_json(json::find(root, "pre_tokenizer")));
    auto decoder = TROUPE_TRY(Decoder::from_json(json::find(root, "decoder")));
    auto core =
        std::make_shared<Tokenizer::Core>(TROUPE_TRY(read_model(root, pre_tokenizer.byte_level())));
    core->normalizer = std::move(normalizer);
    core->pre_tokenizer = std::move(pre_tokenizer);
    core->decoder = std::move(decoder);
    core->added = TROUPE_TRY(read_added_tokens(root, core->vocabulary()));
    TROUPE_RETURN_IF_ERROR(core->index());
    TROUPE_RETURN_IF_ERROR(read_post_processor(json::find(root, "post_processor"), "post_processor",
                                               core->tokens.size(), 0, core->before, core->behind));
    core->tokenizer_json = tokenizer_json;
    core->tokenizer_config_json = tokenizer_config_json;
    core->add_bos_token =
        json::find_bool(config, "add_bos_token").value_or(adds_bos_by_class(config));
    core->chat_template = chat_template_of(config, "default");
    core->tool_use_template = chat_template_of(config, "tool_use");
    if (chat_template) {
      core->chat_template = std::move(chat_template);
      core->chat_template_is_file = true;
    }
    out.core_ = std::move(core);
    return {};
  };
  if (auto status = build(); !status.ok()) return status.prefixed(names.tokenizer);
  out.workspaces_ = std::make_shared<Tokenizer::Workspaces>();
  out.split_special_tokens_ = json::find_bool(config, "split_special_tokens").value_or(false);

  const std::pair<const char*, std::optional<TokenId>*> roles[] = {{"bos_token", &out.bos_},
                                                                   {"eos_token", &out.eos_},
                                                                   {"pad_token", &out.pad_},
                                                                   {"unk_token", &out.unk_}};
  for (const auto& [key, id] : roles) {
    const auto token = special_token(config, map, key);
    if (!token) continue;
    *id = out.token_id(*token);
    if (!*id) {
      return error(Code::kInvalidArgument, "{}: {} '{}' is not in the vocabulary of {}",
                   names.config, key, *token, names.tokenizer);
    }
  }
  return out;
}

Result<Tokenizer> TokenizerLoader::from_files(const std::map<std::string, std::string>& texts,
                                              const std::string& name, const char* main_file) {
  const auto text = [&](const char* file) -> std::string {
    const auto found = texts.find(file);
    return found == texts.end() ? std::string() : found->second;
  };
  const std::string chat = text("chat_template.jinja");
  auto out = TROUPE_TRY(from_text(
      text("tokenizer.json"), text("tokenizer_config.json"), text("special_tokens_map.json"),
      chat.empty() ? std::nullopt : std::optional(chat), name, main_file));
  if (std::string tool_use = text(kToolUseFile); !tool_use.empty()) {
    auto core = std::make_shared<Tokenizer::Core>(*out.core_);
    core->tool_use_template = std::move(tool_use);
    core->tool_use_is_file = true;
    out.core_ = std::move(core);
  }
  return out;
}

Result<Tokenizer> Tokenizer::from_text(std::string_view tokenizer_json,
                                       std::string_view tokenizer_config_json,
                                       std::string_view special_tokens_map_json,
                                       const std::string& name) {
  return TokenizerLoader::from_text(tokenizer_json, tokenizer_config_json, special_tokens_map_json,
                                    std::nullopt, name, "tokenizer.json");
}

// What a tokenizer.model and the files beside it say, as tokenizer.json and tokenizer_config.json.
static Result<std::pair<std::string, std::string>> from_sentence_piece(
    std::string_view model, std::string_view config_json, std::string_view map_json,
    std::string_view added_json, const std::string& directory) {
  const auto read = [&](std::string_view text, const char* name) -> Result<json::Value> {
    if (text.empty()) return json::Value(json::Object());
    auto value = TROUPE_TRY(parse_file(text, join_path(directory, name)));
    if (value.is_object()) return value;
    return error(Code::kInvalidArgument, "{} is no JSON object", join_path(directory, name));
  };
  SentencePieceCompanions companions;
  companions.config = TROUPE_TRY(read(config_json, "tokenizer_config.json"));
  companions.special = TROUPE_TRY(read(map_json, "special_tokens_map.json"));
  companions.added = TROUPE_TRY(read(added_json, "added_tokens.json"));
  const bool add_bos =
      adds_bos_by_class(companions.config) || !json::find(companions.config, "tokenizer_class");
  const auto convert = [&]() -> Result<json::Value> {
    const auto parsed = TROUPE_TRY(SentencePieceModel::parse(model));
    return tokenizer_json_of(parsed, companions, add_bos);
  };
  const auto root = convert();
  if (!root) return root.status().prefixed(join_path(directory, "tokenizer.model"));
  auto& members = companions.config.get_object();
  if (!members.contains("add_bos_token")) members["add_bos_token"] = add_bos;
  return std::pair(json::write(*root), json::write_indented(companions.config, false) + "\n");
}

Result<Tokenizer> Tokenizer::load(FileSystem& files, const std::string& path) {
  std::string directory = path;
  const bool names_file = path.ends_with(".json") || path.ends_with(".model");
  if (names_file) {
    const auto slash = path.rfind('/');
    directory = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  }
  auto main_path = names_file ? path : join_path(path, "tokenizer.json");
  if (!names_file && !files.exists(main_path)) main_path = join_path(path, "tokenizer.model");
  if (!files.exists(main_path)) {
    return error(
        Code::kNotFound,
        "{} has no tokenizer.json or tokenizer.model: give a directory with one of them (a "
        "vocab.txt alone is not supported: convert it with Hugging Face's tokenizers)",
        directory);
  }
  auto main_text = TROUPE_TRY(files.read(main_path, limits::kJsonFileBytesMax));
  const auto optional_file = [&](const char* name) -> Result<std::string> {
    const auto at = join_path(directory, name);
    if (!files.exists(at)) return std::string();
    return files.read(at, limits::kJsonFileBytesMax);
  };
  std::map<std::string, std::string> texts;
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", kToolUseFile})
    texts[name] = TROUPE_TRY(optional_file(name));
  if (!main_path.ends_with(".model")) {
    texts["tokenizer.json"] = std::move(main_text);
    return from_files(texts, directory);
  }
  const auto added = TROUPE_TRY(optional_file("added_tokens.json"));
  std::string& config = texts["tokenizer_config.json"];
  std::tie(texts["tokenizer.json"], config) = TROUPE_TRY(
      from_sentence_piece(main_text, config, texts["special_tokens_map.json"], added, directory));
  return TokenizerLoader::from_files(texts, directory, "tokenizer.model");
}

Result<std::string> Tokenizer::tokenizer_json() const {
  if (core_->added_as_read) return core_->tokenizer_json;
  auto root = TROUPE_TRY(parse_file(core_->tokenizer_json, "tokenizer.json"));
  auto added = core_->added;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  json::Array tokens;
  for (const auto& token : added) tokens.push_back(token.to_json());
  root.get_object()["added_tokens"] = std::move(tokens);
  return json::write_indented(root, false);
}

Result<Tokenizer> Tokenizer::from_files(const std::map<std::string, std::string>& texts,
                                        const std::string& name) {
  return TokenizerLoader::from_files(texts, name, "tokenizer.json");
}

Result<std::map<std::string, std::string>> Tokenizer::files() const {
  std::map<std::string, std::string> texts;
  texts["tokenizer.json"] = TROUPE_TRY(tokenizer_json());

  json::Value config = json::Object();
  if (!core_->tokenizer_config_json.empty()) {
    config = TROUPE_TRY(parse_file(core_->tokenizer_config_json, "tokenizer_config.json"));
  }
  if (!config.is_object()) config = json::Object();
  auto& members = config.get_object();
  if (split_special_tokens_) members["split_special_tokens"] = true;
  if (!members.contains("tokenizer_class")) members["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::pair<const char*, std::optional<TokenId>> roles[] = {
      {"bos_token", bos_}, {"eos_token", eos_}, {"pad_token", pad_}, {"unk_token", unk_}};
  for (const auto& [key, id] : roles) {
    if (!id) continue;
    const auto before = special_token(config, json::Object(), key);
    if (before != token(*id)) members[key] = *token(*id);
  }
  // The file comes first where both are read, but nobody should find two.
  if (core_->chat_template_is_file) members.erase("chat_template");
  texts["tokenizer_config.json"] = json::write_indented(config, false) + "\n";
  if (core_->chat_template_is_file) texts["chat_template.jinja"] = *core_->chat_template;
  if (core_->tool_use_is_file && core_->tool_use_template)
    texts[kToolUseFile] = *core_->tool_use_template;
  return texts;
}

Status Tokenizer::save(FileSystem& files, const std::string& directory) const {
  for (const auto& [name, text] : TROUPE_TRY(this->files())) {
    const std::string path = join_path(directory, name);
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, path.rfind('/'))));
    TROUPE_RETURN_IF_ERROR(write_file_atomically(files, path, text));
  }
  return {};
}

}  // namespace troupe::train
