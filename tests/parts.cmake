include(packaging.cmake)
terrace_test(base_test SOURCES base/base_test.cc base/metrics_test.cc)
terrace_test(conformance_test
             SOURCES conformance/backends_main.cc conformance/conformance.cc conformance/conformance_objects.cc
                     conformance/conformance_life.cc conformance/conformance_pressure.cc conformance/test_object.cc
                     conformance/fault_test.cc conformance/kept_backend.cc support/fault_backend.cc)
include(${PROJECT_SOURCE_DIR}/backends/nvme/tests/tests.cmake OPTIONAL)
include(gpu/tests.cmake)
include(fuzz/fuzz.cmake)
include(${PROJECT_SOURCE_DIR}/tests/wire/tests.cmake OPTIONAL)
find_package(nlohmann_json REQUIRED)
terrace_test(core_test SOURCES core/identity_test.cc core/frame_test.cc core/hostile_format_test.cc core/buffer_pool_test.cc
                     core/buffer_pool_stress_test.cc core/run_map_test.cc
                     core/packed_content_test.cc core/lru_policy_test.cc core/handle_table_test.cc core/chunk_index_test.cc core/chunk_index_model_test.cc
             core/stream_copy_test.cc core/paged_copy_test.cc core/paged_kv_view_test.cc core/view_overlap_test.cc core/paged_layouts_test.cc LINK nlohmann_json::nlohmann_json)
if(NOT TERRACE_SANITIZER MATCHES "thread")  # it has no threads, and takes minutes there
  terrace_test(kernels_test SOURCES kernels/layouts_test.cc kernels/random_copies_test.cc kernels/launch_test.cc
               kernels/host_launcher_test.cc kernels/large_offsets_test.cc)
endif()
set(TERRACE_SIMULATED_DEVICE support/simulated_device.cc support/simulated_streams.cc)
terrace_test(device_test SOURCES device/host_device_test.cc device/event_poller_test.cc device/simulated_device_test.cc
                                 device/simulated_edges_test.cc device/copy_calibration_test.cc
                                 device/staged_parts_test.cc device/copier_copy_test.cc device/copier_fault_test.cc
                                 device/copier_open_test.cc device/device_set_test.cc ${TERRACE_SIMULATED_DEVICE})
terrace_test(device_store_test SOURCES storage/device_store_order_test.cc storage/device_store_end_test.cc storage/device_store_groups_test.cc
             support/memory_disk.cc ${TERRACE_SIMULATED_DEVICE})
terrace_test(manager_test TIMEOUT 900 SOURCES storage/manager_test.cc storage/manager_fault_test.cc storage/manager_review_test.cc storage/restore_test.cc storage/nvme_stack_test.cc
             storage/throwing_backend_test.cc storage/callback_fault_test.cc storage/peek_pin_test.cc storage/lease_test.cc storage/remote_match_test.cc
             storage/remote_load_test.cc storage/load_layer_test.cc storage/load_sink_test.cc
             storage/load_window_test.cc storage/store_views_test.cc storage/erase_by_test.cc storage/trace_test.cc storage/shards_test.cc storage/ranks_test.cc storage/relayout_test.cc
             support/fault_backend.cc support/match_backend.cc support/memory_disk.cc support/throwing_backend.cc
             LINK nlohmann_json::nlohmann_json)
terrace_test(device_load_test TIMEOUT 600
             SOURCES storage/device_load_order_test.cc storage/device_load_end_test.cc support/memory_disk.cc
                     ${TERRACE_SIMULATED_DEVICE})
terrace_test(frame_store_test SOURCES storage/frame_store_test.cc storage/frame_arrival_test.cc storage/frame_erase_test.cc
             storage/frame_events_test.cc storage/remote_prefix_test.cc
             support/fault_backend.cc support/match_backend.cc support/memory_disk.cc)
terrace_test(model_test TIMEOUT 600 SOURCES model/model_test.cc model/manager_model.cc model/model_match.cc model/model_events.cc
             model/model_run.cc model/model_run_store.cc model/model_run_load.cc model/model_run_names.cc
             model/step_backend.cc model/threads_test.cc model/contract_test.cc support/fault_backend.cc support/memory_disk.cc)
include(${PROJECT_SOURCE_DIR}/connectors/options/tests.cmake)
include(${PROJECT_SOURCE_DIR}/connectors/server/tests/tests.cmake OPTIONAL)
# gRPC is built without the thread sanitizer, which does not see the hand-offs between its threads and takes all
# that our callbacks touch for races.
if(NOT TERRACE_SANITIZER MATCHES "thread")
  include(${PROJECT_SOURCE_DIR}/connectors/server/tests/service_tests.cmake)
  include(${PROJECT_SOURCE_DIR}/connectors/server/tests/shm_tests.cmake)
  include(${PROJECT_SOURCE_DIR}/backends/remote/tests/tests.cmake)
  terrace_test(remote_conformance_test TIMEOUT 600
               SOURCES conformance/remote_main.cc conformance/conformance.cc conformance/conformance_objects.cc
                       conformance/conformance_life.cc conformance/conformance_pressure.cc conformance/test_object.cc
                       conformance/fault_test.cc support/fault_backend.cc
               LINK terrace_serve)
endif()
if(TARGET terrace_program)
  include(${PROJECT_SOURCE_DIR}/connectors/cli/tests.cmake)
endif()
if(TERRACE_HAVE_LLAMA)
  include(${PROJECT_SOURCE_DIR}/connectors/llamacpp/tests/tests.cmake OPTIONAL)
  include(${PROJECT_SOURCE_DIR}/connectors/llamacpp/tool/tests.cmake OPTIONAL)
endif()
