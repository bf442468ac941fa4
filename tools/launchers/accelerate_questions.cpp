// `accelerate config`: its questions, in its order (accelerate 1.11, commands/config/cluster.py),
// and the file that comes of the answers. Where accelerate has menus, choices have numbers here.
#include <algorithm>
#include <istream>
#include <ostream>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "tools/launchers/accelerate_settings.h"
#include "tools/launchers/flag_parser.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"
#include "train/config/values.h"
#include "train/config/yaml.h"

namespace troupe::tools {
namespace {

using train::json_view;

// Asks until an answer can be read. An empty answer is the default, and so is every one after the
// input's end.
class Questions {
 public:
  Questions(std::istream& in, std::ostream& out) : in_(in), out_(out) {}

  bool yes_no(std::string_view question, bool otherwise) {
    while (true) {
      const std::string answer =
          ask(fmt::format("{} [{}]: ", question, otherwise ? "YES/no" : "yes/NO"));
      if (answer.empty()) return otherwise;
      const std::string word = lower_case(answer);
      for (const char* yes : {"yes", "y", "1", "true", "t"}) {
        if (word == yes) return true;
      }
      for (const char* no : {"no", "n", "0", "false", "f"}) {
        if (word == no) return false;
      }
      out_ << "Please enter yes or no.\n";
    }
  }

  std::int64_t number(std::string_view question, std::int64_t otherwise, std::int64_t least,
                      std::int64_t most) {
    while (true) {
      const std::string answer = ask(fmt::format("{} [{}]: ", question, otherwise));
      if (answer.empty()) return otherwise;
      const auto value = parse_integer<std::int64_t>(answer);
      if (value && *value >= least && *value <= most) return *value;
      out_ << fmt::format("Please enter an integer from {} to {}.\n", least, most);
    }
  }

  double real(std::string_view question, double otherwise) {
    while (true) {
      const std::string answer =
          ask(fmt::format("{} [{}]: ", question, json::python_float(otherwise)));
      if (answer.empty()) return otherwise;
      const auto value = train::read_number(json::Value(answer));
      if (value.ok()) return *value;
      out_ << "Please enter a number.\n";
    }
  }

  std::string text(std::string_view question, std::string otherwise) {
    const std::string answer = ask(fmt::format("{} [{}]: ", question, otherwise));
    return answer.empty() ? otherwise : answer;
  }

  // Without a default.
  Result<std::string> needed(std::string_view question) {
    while (true) {
      std::string answer = ask(fmt::format("{}: ", question));
      if (!answer.empty()) return answer;
      if (ended_) {
        return error(Code::kInvalidArgument,
                     "the input ended at the question '{}', which has no "
                     "default answer; no file was written",
                     question);
      }
      out_ << "There is no default here.\n";
    }
  }

  // The number of a choice. `why` says why one cannot be had; empty: it can.
  template <typename Why>
  std::size_t choice(std::string_view question, const std::vector<std::string>& choices,
                     std::size_t otherwise, const Why& why) {
    out_ << question << "\n";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      out_ << fmt::format("  {}. {}\n", i, choices[i]);
    }
    while (true) {
      const std::string answer = ask(fmt::format("Please select a choice [{}]: ", otherwise));
      std::size_t chosen = otherwise;
      if (!answer.empty()) {
        const auto named = std::find(choices.begin(), choices.end(), answer);
        const auto number = parse_integer<std::size_t>(answer);
        chosen = number && *number < choices.size()
                     ? *number
                     : static_cast<std::size_t>(named - choices.begin());
        if (chosen >= choices.size()) {
          out_ << fmt::format("Please enter a number from 0 to {}.\n", choices.size() - 1);
          continue;
        }
      }
      const std::string refusal = why(chosen);
      if (refusal.empty()) return chosen;
      out_ << choices[chosen] << ": " << refusal << "\n";
    }
  }
  std::size_t choice(std::string_view question, const std::vector<std::string>& choices,
                     std::size_t otherwise = 0) {
    return choice(question, choices, otherwise, [](std::size_t) { return std::string(); });
  }
  std::string name(std::string_view question, const std::vector<std::string>& choices,
                   std::size_t otherwise = 0) {
    return choices[choice(question, choices, otherwise)];
  }
  void say(std::string_view line) { out_ << line << "\n"; }

 private:
  std::string ask(const std::string& prompt) {
    out_ << prompt << std::flush;
    std::string answer;
    if (!std::getline(in_, answer)) ended_ = true;
    // Nobody's typing ended the line.
    if (ended_) out_ << "\n";
    return std::string(trim(answer));
  }

  std::istream& in_;
  std::ostream& out_;
  bool ended_ = false;
};

constexpr std::int64_t kMost = 1 << 16;

struct Machines {
  std::int64_t count = 1, rank = 0, port = 0;
  std::string address, rdzv_backend = "static";
  bool same_network = true, debug = false;
};

Result<Machines> ask_machines(Questions& ask) {
  Machines out;
  out.count = ask.number(
      "How many different machines will you use (use more than 1 for multi-node training)?", 1, 1,
      kMost);
  if (out.count > 1) {
    out.rank = ask.number("What is the rank of this machine?", 0, 0, out.count - 1);
    out.address = TROUPE_TRY(
        ask.needed("What is the IP address of the machine that will host the main process?"));
    out.port = ask.number("What is the port you will use to communicate with the main process?",
                          29500, 1, 65535);
    out.same_network = ask.yes_no(
        "Are all the machines on the same local network? Answer `no` if nodes are on the cloud "
        "and/or on different network hosts",
        true);
    if (!out.same_network) {
      out.rdzv_backend =
          ask.text("What rendezvous backend will you use? ('static', 'c10d', ...)", "static");
    }
  }
  out.debug = ask.yes_no(
      "Should distributed operations be checked while running for errors? This can avoid timeout "
      "issues but will be slower.",
      false);
  return out;
}

json::Object ask_dynamo(Questions& ask) {
  json::Object out;
  if (!ask.yes_no("Do you wish to optimize your script with torch dynamo?", false)) return out;
  std::string backend =
      ask.name("Which dynamo backend would you like to use?",
               {"eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs",
                "ofi", "fx2trt", "onnxrt", "tensorrt", "aot_torchxla_trace_once",
                "torhchxla_trace_once", "ipex", "tvm"},
               2);
  backend = upper_case(backend);
  out["dynamo_backend"] = backend;
  if (ask.yes_no("Do you want to customize the defaults sent to torch.compile?", false)) {
    out["dynamo_mode"] =
        ask.name("Which mode do you want to use?", {"default", "reduce-overhead", "max-autotune"});
    out["dynamo_use_fullgraph"] = ask.yes_no(
        "Do you want the fullgraph mode or it is ok to break model into several subgraphs?", false);
    out["dynamo_use_dynamic"] = ask.yes_no("Do you want to enable dynamic shape tracing?", false);
    out["dynamo_use_regional_compilation"] =
        ask.yes_no("Do you want to enable regional compilation?", false);
  }
  return out;
}

Status ask_deepspeed_hosts(Questions& ask, json::Object& out) {
  const std::string launcher =
      ask.name("Which Type of launcher do you want to use?",
               {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"});
  out["deepspeed_multinode_launcher"] = launcher;
  if (launcher == "standard") return {};
  out["deepspeed_hostfile"] = TROUPE_TRY(ask.needed(
      "DeepSpeed configures multi-node compute resources with hostfile. Each row is of the format "
      "`hostname slots=[num_gpus]`, e.g., `localhost slots=2`. Please specify the location of "
      "hostfile"));
  for (const char* kind : {"exclusion", "inclusion"}) {
    if (!ask.yes_no(fmt::format("Do you want to specify {} filter string?", kind), false)) continue;
    out[json_view(fmt::format("deepspeed_{}_filter", kind))] =
        TROUPE_TRY(ask.needed(fmt::format("DeepSpeed {} filter string", kind)));
  }
  return {};
}

// `by_file`: a JSON file of DeepSpeed's says the rest.
Result<json::Object> ask_deepspeed(Questions& ask, std::int64_t machines, bool& by_file) {
  json::Object out;
  by_file = ask.yes_no("Do you want to specify a json file to a DeepSpeed config?", false);
  if (by_file) {
    out["deepspeed_config_file"] =
        ask.text("Please enter the path to the json DeepSpeed config file", "none");
  } else {
    const auto stage = static_cast<std::int64_t>(ask.choice(
        "What should be your DeepSpeed's ZeRO optimization stage?", {"0", "1", "2", "3"}, 2));
    out["zero_stage"] = stage;
    if (stage >= 2) {
      const std::vector<std::string> devices{"none", "cpu", "nvme"};
      out["offload_optimizer_device"] = ask.name("Where to offload optimizer states?", devices);
      out["offload_param_device"] = ask.name("Where to offload parameters?", devices);
      if (out["offload_param_device"] == "nvme") {
        out["offload_param_nvme_path"] = ask.text("Nvme Path to offload parameters?", "/nvme");
      }
      if (out["offload_optimizer_device"] == "nvme") {
        out["offload_optimizer_nvme_path"] =
            ask.text("Nvme Path to offload optimizer states?", "/nvme");
      }
    }
    out["gradient_accumulation_steps"] = ask.number(
        "How many gradient accumulation steps you're passing in your script?", 1, 1, 1 << 20);
    if (ask.yes_no("Do you want to use gradient clipping?", false)) {
      out["gradient_clipping"] = ask.real("What is the gradient clipping value?", 1.0);
    }
    if (stage == 3) {
      out["zero3_save_16bit_model"] =
          ask.yes_no("Do you want to save 16-bit model weights when using ZeRO Stage-3?", false);
    }
  }
  out["zero3_init_flag"] = ask.yes_no(
      "Do you want to enable `deepspeed.zero.Init` when using ZeRO Stage-3 for constructing "
      "massive models?",
      false);
  if (ask.yes_no("Do you want to enable Mixture-of-Experts training (MoE)?", false)) {
    out["deepspeed_moe_layer_cls_names"] = TROUPE_TRY(ask.needed(
        "Specify the comma-separated list of transformers MoE layer class names (case-sensitive), "
        "e.g : `MixtralSparseMoeBlock`"));
  }
  if (machines > 1) TROUPE_RETURN_IF_ERROR(ask_deepspeed_hosts(ask, out));
  return out;
}

Result<json::Object> ask_fsdp(Questions& ask) {
  json::Object out;
  const std::size_t version = ask.choice("What should be your FSDP version?", {"1", "2"}, 1) + 1;
  const bool first = version == 1;
  out["fsdp_version"] = version;
  if (first) {
    // accelerate's file holds version 1's strategy under this key, too.
    out["fsdp_reshard_after_forward"] =
        ask.name("What should be your sharding strategy?",
                 {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
  } else {
    out["fsdp_reshard_after_forward"] =
        ask.yes_no("Do you want to enable resharding after forward?", true);
  }
  out["fsdp_offload_params"] =
      ask.yes_no("Do you want to offload parameters and gradients to CPU?", false);
  const std::size_t policy = ask.choice("What should be your auto wrap policy?",
                                        {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
  out["fsdp_auto_wrap_policy"] = policy == 0   ? "TRANSFORMER_BASED_WRAP"
                                 : policy == 1 ? "SIZE_BASED_WRAP"
                                               : "NO_WRAP";
  if (policy == 0 && !ask.yes_no("Do you want to use the model's `_no_split_modules` to wrap. Only "
                                 "applicable for 🤗 Transformers",
                                 false)) {
    out["fsdp_transformer_layer_cls_to_wrap"] = TROUPE_TRY(ask.needed(
        "Specify the comma-separated list of transformer layer class names (case-sensitive) to "
        "wrap ,e.g, :`BertLayer`, `GPTJBlock`, `T5Block` ...?"));
  } else if (policy == 1) {
    out["fsdp_min_num_params"] = ask.number(
        "What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
        100'000'000, 1, std::int64_t{1} << 50);
  }
  if (first) {
    out["fsdp_backward_prefetch"] = ask.name("What should be your FSDP's backward prefetch policy?",
                                             {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
  }
  out["fsdp_state_dict_type"] = ask.name(
      "What should be your FSDP's state dict type?",
      first ? std::vector<std::string>{"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}
            : std::vector<std::string>{"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
  if (first) {
    out["fsdp_forward_prefetch"] =
        ask.yes_no("Do you want to enable FSDP's forward prefetch policy?", false);
    out["fsdp_use_orig_params"] =
        ask.yes_no("Do you want to enable FSDP's `use_orig_params` feature?", true);
  }
  const bool efficient = ask.yes_no(
      "Do you want to enable CPU RAM efficient model loading? Only applicable for 🤗 "
      "Transformers "
      "models.",
      true);
  out["fsdp_cpu_ram_efficient_loading"] = efficient;
  if (first) {
    out["fsdp_sync_module_states"] =
        efficient || ask.yes_no(
                         "Do you want each individually wrapped FSDP unit to broadcast "
                         "module parameters from rank 0 at the start?",
                         true);
  }
  out["fsdp_activation_checkpointing"] =
      ask.yes_no("Do you want to enable FSDP activation checkpointing?", false);
  return out;
}

json::Object ask_parallelism(Questions& ask) {
  json::Object out;
  if (!ask.yes_no("Do you want to use the parallelism config?", false)) return out;
  constexpr std::pair<const char*, const char*> kSizes[] = {
      {"dp_replicate", "What is the data parallelism replicate size?"},
      {"dp_shard", "What is the FSDP shard size?"},
      {"tp", "What is the tensor parallelism size?"},
      {"cp", "What is the context parallelism size?"},
  };
  for (const auto& [axis, question] : kSizes) {
    out[json_view(fmt::format("parallelism_config_{}_size", axis))] =
        ask.number(question, 1, 1, kMost);
  }
  if (out["parallelism_config_cp_size"].as_int64() > 1) {
    out["parallelism_config_cp_comm_strategy"] = ask.name(
        "What is the compute parallelism communication strategy?", {"allgather", "alltoall"});
  }
  return out;
}

// All questions, to the values of the file.
Result<json::Object> ask_all(Questions& ask) {
  const auto only_first = [](std::size_t chosen) {
    return chosen == 0 ? std::string()
                       : std::string("training runs on machines of one's own; choose another");
  };
  ask.choice("In which compute environment are you running?",
             {"This machine", "AWS (Amazon SageMaker)"}, 0, only_first);
  const std::vector<std::string> kinds{"No distributed training",
                                       "multi-CPU",
                                       "multi-XPU",
                                       "multi-HPU",
                                       "multi-GPU",
                                       "multi-NPU",
                                       "multi-MLU",
                                       "multi-SDAA",
                                       "multi-MUSA",
                                       "TPU"};
  const std::size_t kind =
      ask.choice("Which type of machine are you using?", kinds, 0, [](std::size_t chosen) {
        const bool there = chosen == 0 || chosen == 1 || chosen == 4;
        return there ? std::string() : std::string("no such device is used; choose another");
      });
  std::string type = kind == 0 ? "NO" : kind == 1 ? "MULTI_CPU" : "MULTI_GPU";
  const bool on_cpus = type == "MULTI_CPU";
  Machines machines;
  if (type != "NO") machines = TROUPE_TRY(ask_machines(ask));
  const bool use_cpu =
      on_cpus || (type == "NO" &&
                  ask.yes_no("Do you want to run your training on CPU only (even if a GPU / Apple "
                             "Silicon / Ascend NPU device is available)?",
                             false));
  json::Object ipex;
  if (use_cpu) {
    ipex["ipex"] = ask.yes_no(
        "Do you want to use Intel PyTorch Extension (IPEX) to speed up training on CPU/XPU?",
        false);
  }
  if (on_cpus && ask.yes_no("Do you want accelerate to launch mpirun?", false)) {
    ask.say("Ranks are placed without MPI: it is not used.");
  }
  json::Object dynamo = ask_dynamo(ask);
  json::Object deepspeed, fsdp, parallelism;
  bool by_file = false;
  if (!on_cpus && ask.yes_no("Do you want to use DeepSpeed?", false)) {
    type = "DEEPSPEED";
    deepspeed = TROUPE_TRY(ask_deepspeed(ask, machines.count, by_file));
  }
  if (type == "MULTI_GPU" && ask.yes_no("Do you want to use FullyShardedDataParallel?", false)) {
    type = "FSDP";
    fsdp = TROUPE_TRY(ask_fsdp(ask));
    if (fsdp["fsdp_version"] == 2) parallelism = ask_parallelism(ask);
  }
  if (type == "MULTI_GPU" && ask.yes_no("Do you want to use Megatron-LM ?", false)) {
    ask.say("Megatron is another runtime: it is not used.");
  }
  std::int64_t processes = 1;
  if (type != "NO") {
    processes = ask.number(fmt::format("How many {} should be used for distributed training?",
                                       on_cpus ? "processes" : "GPU(s)"),
                           1, 1, kMost);
  }
  if (type == "MULTI_GPU" && machines.count == 1 && processes == 1) {
    return Status(Code::kInvalidArgument,
                  "Specified distributed type MULTI_GPU but only using 1 GPU on a single machine. "
                  "Please select `No distributed training` for the type of machine you are using. "
                  "No file was written");
  }
  json::Object out;
  if ((type == "NO" || type == "MULTI_GPU") && !use_cpu) {
    out["gpu_ids"] = ask.text(
        "What GPU(s) (by id) should be used for training on this machine as a comma-separated "
        "list?",
        "all");
    out["enable_cpu_affinity"] = ask.yes_no(
        "Would you like to enable numa efficiency? (Currently only supported on NVIDIA hardware).",
        false);
  } else {
    out["enable_cpu_affinity"] = false;
  }
  if (!by_file) {
    const std::vector<std::string> precisions{"no", "fp16", "bf16", "fp8"};
    out["mixed_precision"] = precisions[ask.choice(
        "Do you wish to use mixed precision?", precisions, 0, [](std::size_t chosen) {
          return chosen == 3 ? std::string(
                                   "its settings are of other packages' recipes; choose "
                                   "another, and for a training fp8: true in its own file")
                             : std::string();
        })];
  }
  out["compute_environment"] = "LOCAL_MACHINE";
  out["distributed_type"] = type;
  out["num_processes"] = processes;
  out["num_machines"] = machines.count;
  out["machine_rank"] = machines.rank;
  if (machines.count > 1) {
    out["main_process_ip"] = machines.address;
    out["main_process_port"] = machines.port;
  }
  out["rdzv_backend"] = machines.rdzv_backend;
  out["same_network"] = machines.same_network;
  out["debug"] = machines.debug;
  out["use_cpu"] = use_cpu;
  out["downcast_bf16"] = "no";
  out["main_training_function"] = "main";
  out["tpu_env"] = json::Array();
  out["tpu_use_cluster"] = false;
  out["tpu_use_sudo"] = false;
  const auto put = [&](const char* name, json::Object section) {
    if (!section.empty()) out[name] = std::move(section);
  };
  put("ipex_config", std::move(ipex));
  put("dynamo_config", std::move(dynamo));
  put("deepspeed_config", std::move(deepspeed));
  put("fsdp_config", std::move(fsdp));
  put("parallelism_config", std::move(parallelism));
  return out;
}

std::string yaml_scalar(const json::Value& value) {
  if (!value.is_string())
    return value.is_double() ? json::python_float(value.get_double()) : json::write(value);
  const std::string text(value.get_string().data(), value.get_string().size());
  const auto plain = train::resolve_yaml_scalar(text);
  const bool needs_quotes = !plain.is_string() || text.empty() ||
                            text.find_first_of(":#{}[],&*!|>'\"%@`\n") != std::string::npos ||
                            text != trim(text) || text.starts_with('-') || text.starts_with('?');
  if (!needs_quotes) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

// As PyYAML dumps it: keys sorted.
std::string yaml_text(const json::Object& values, const std::string& indent = "") {
  std::vector<std::string> names;
  for (const auto& member : values) names.emplace_back(member.key());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    const json::Value& value = values.at(json_view(name));
    if (value.is_object()) {
      text += fmt::format("{}{}:\n{}", indent, name, yaml_text(value.get_object(), indent + "  "));
    } else {
      text += fmt::format("{}{}: {}\n", indent, name, yaml_scalar(value));
    }
  }
  return text;
}

Status save(const json::Object& values, const std::string& path, bool as_json, FileSystem& files) {
  const std::string text = as_json ? json::write_indented(values, true) + "\n" : yaml_text(values);
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, slash)));
  }
  const auto file = TROUPE_TRY(files.create(path, 0644));
  TROUPE_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(text))));
  return file->close();
}

// `config default`: nothing is asked. JSON, whatever the file is called, and never over another.
Result<Invocation> write_default(const std::string& path, std::string precision,
                                 const LauncherContext& context) {
  precision = lower_case(precision);
  if (precision != "no" && precision != "fp16" && precision != "bf16" && precision != "fp8") {
    return error(Code::kInvalidArgument,
                 "`mixed_precision` should be one of 'no', 'fp16', 'bf16', or 'fp8'. Received {}",
                 precision);
  }
  if (context.files.exists(path)) {
    return Invocation{
        Answer{.text = fmt::format(
                   "Configuration already exists at {}, will not override. Run `accelerate config` "
                   "manually or pass a different `save_location`.\n",
                   path)},
        {}};
  }
  const int gpus = context.gpus_here();
  const json::Object values{{"compute_environment", "LOCAL_MACHINE"},
                            {"debug", false},
                            {"distributed_type", gpus > 1 ? "MULTI_GPU" : "NO"},
                            {"downcast_bf16", false},
                            {"enable_cpu_affinity", false},
                            {"machine_rank", 0},
                            {"main_training_function", "main"},
                            {"mixed_precision", precision},
                            {"num_machines", 1},
                            {"num_processes", std::max(1, gpus)},
                            {"rdzv_backend", "static"},
                            {"same_network", false},
                            {"tpu_use_cluster", false},
                            {"tpu_use_sudo", false},
                            {"use_cpu", gpus == 0}};
  FileSystem& files = context.files;
  return Invocation{Dialogue{.hold =
                                 [values, path, &files](std::istream&, std::ostream& out) {
                                   TROUPE_RETURN_IF_ERROR(save(values, path, true, files));
                                   out << "accelerate configuration saved at " << path << "\n";
                                   return Status();
                                 }},
                    {}};
}

}  // namespace

Result<Invocation> accelerate_config(std::span<const std::string> words,
                                     const LauncherContext& context) {
  std::string path, precision = "no";
  FlagParser parser("accelerate config", false);
  parser
      .about("accelerate config [default] [--config_file FILE]",
             "Asks what accelerate asks, and writes the file that `accelerate launch` reads. With "
             "`default` it is written without questions ('accelerate config default --help').",
             {"accelerate config", "accelerate config --config_file mine.yaml"})
      .value("config_file", path, "FILE",
             fmt::format("what is written (default: {})",
                         accelerate_default_file(context.environment)));
  auto rest = TROUPE_TRY(parser.parse(words));
  if (auto told = information(parser)) return std::move(*told);
  const auto file = [&] {
    return path.empty() ? accelerate_default_file(context.environment) : path;
  };
  if (!rest.empty() && rest.front() == "default") {
    FlagParser of_default("accelerate config default", false);
    of_default
        .about("accelerate config default [flags]",
               "Writes the file that `accelerate launch` reads without a question, and never over "
               "another one.",
               {"accelerate config default --mixed_precision bf16"})
        .value("config_file", path, "FILE", "what is written")
        .value("mixed_precision", precision, "no|fp16|bf16|fp8", "what launch tells scripts");
    const auto more = TROUPE_TRY(of_default.parse(std::span(rest).subspan(1)));
    if (auto told = information(of_default)) return std::move(*told);
    if (more.empty()) return write_default(file(), precision, context);
    rest = more;
  }
  if (!rest.empty() && rest.front() == "update") {
    return Status(Code::kUnsupported,
                  "accelerate config update: files of old versions are read as they are");
  }
  if (!rest.empty()) {
    return error(Code::kInvalidArgument, "accelerate config: error: unrecognized arguments: {}{}",
                 rest.front(), did_you_mean(rest.front(), {"default", "update"}));
  }
  FileSystem& files = context.files;
  return Invocation{
      Dialogue{.hold = [path = file(), &files](std::istream& in, std::ostream& out) -> Status {
        Questions ask(in, out);
        const json::Object values = TROUPE_TRY(ask_all(ask));
        TROUPE_RETURN_IF_ERROR(save(values, path, path.ends_with(".json"), files));
        out << "accelerate configuration saved at " << path << "\n";
        return {};
      }},
      {}};
}

}  // namespace troupe::tools
