include(packaging.cmake)
terrace_test(base_test SOURCES base/base_test.cc base/metrics_test.cc)
terrace_test(conformance_test
             SOURCES conformance/backends_main.cc conformance/conformance.cc conformance/conformance_objects.cc
                     conformance/conformance_life.cc conformance/conformance_pressure.cc conformance/test_object.cc
                     conformance/fault_test.cc conformance/kept_backend.cc support/fault_backend.cc)
include(${PROJECT_SOURCE_DIR}/backends/nvme/tests/tests.cmake OPTIONAL)
find_package(nlohmann_json REQUIRED)
terrace_test(core_test SOURCES core/identity_test.cc core/frame_test.cc core/hostile_format_test.cc core/buffer_pool_test.cc LINK nlohmann_json::nlohmann_json)
terrace_test(manager_test TIMEOUT 900 SOURCES storage/manager_test.cc storage/manager_fault_test.cc storage/manager_review_test.cc storage/nvme_stack_test.cc
             storage/throwing_backend_test.cc support/fault_backend.cc support/memory_disk.cc support/throwing_backend.cc)
if(TERRACE_HAVE_LLAMA)
  include(${PROJECT_SOURCE_DIR}/connectors/llamacpp/tests/tests.cmake OPTIONAL)
  include(${PROJECT_SOURCE_DIR}/connectors/llamacpp/tool/tests.cmake OPTIONAL)
endif()
