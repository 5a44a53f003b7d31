"""What callers of onnxruntime use: the same names, defaults and behaviour.

- Sessions: `session` (what callers hold), `core_session` (what those of the C level ask), `loaded_session` (what runs),
  `native_session`; begun by `session_opening`, from an engine (`stored_session`) or by `session_build` and
  `compiled_model` from `provider_choice`, `model_overrides`, `session_options`, `config_keys`, `declarations`; asked
  for by `session_request`, told about by `built`, `signature`, `node_arg`, `model_metadata`, `placement_report`.
- Engines: kept for model files (`engine_store`, `engine_keeper`, `kept_engine`, `held_files`), or compiled to files
  (`engine_compiler`, `shape_profiles`, `compiled_engine`, `engine_source`) and ONNX models (`context_export`).
- Runs: `feeds` in, `results` out, `run_options`, `io_binding`.
- Values: `ort_value`, `core_value`, `ort_value_vector`, `sparse_tensor`, `dlpack`, `element_types`.
- Devices and memory: `device`, `ep_devices`, `memory_info`.
- Beside sessions: `environment` (shared by the process), `enums`, `build_info`, `arguments`; `model_compiler` and
  `ep_context`; `warming` (caches filled ahead); `lora` and `adapter_file`; `weight_quantization`.
"""
