include(packaging.cmake)
terrace_test(base_test SOURCES base/base_test.cc base/metrics_test.cc)
terrace_test(conformance_test
             SOURCES conformance/conformance_main.cc conformance/conformance.cc conformance/conformance_objects.cc
                     conformance/conformance_life.cc conformance/conformance_pressure.cc conformance/test_object.cc
                     conformance/fault_test.cc conformance/kept_backend.cc support/fault_backend.cc)
include(${PROJECT_SOURCE_DIR}/backends/nvme/tests.cmake OPTIONAL)
