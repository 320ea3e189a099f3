#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "connectors/server/bulk_tls.h"
#include "connectors/server/tests/service_fixture.h"
#include "tests/support/tls_identity.h"

namespace terrace::server {
namespace {

void Show(SSL_CTX* context, const TlsIdentity& identity) {
  BIO* text = BIO_new_mem_buf(identity.certificate.data(), -1);
  X509* certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  X509_free(certificate);
  BIO_free(text);
  text = BIO_new_mem_buf(identity.key.data(), -1);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(text, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  EVP_PKEY_free(key);
  BIO_free(text);
}

class ServiceTlsTest : public ServiceTest {
 protected:
  void StartMutual() {
    options.tls = {ours.certificate, ours.key, ours.certificate};
    Start();
  }
  grpc::Status OpenAs(const TlsIdentity* shown) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = ours.certificate;
    if (shown) {
      tls.pem_cert_chain = shown->certificate;
      tls.pem_private_key = shown->key;
    }
    client = std::make_unique<Client>(server->addresses().front(), "token-of-alice");
    client->channel = grpc::CreateChannel(server->addresses().front(), grpc::SslCredentials(tls));
    client->stub = v1::Cache::NewStub(client->channel);
    return client->Open({v1::DATA_PATH_BULK});
  }
  // The handshake on the bulk port, over TLS with the identity shown, or in plain.
  Status Shake(bool over_tls, const TlsIdentity* shown, BulkWelcome& welcome) const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(client->opened.bulk().tcp_port()));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    BulkHello hello;
    std::memcpy(hello.session.data(), client->session.data(), hello.session.size());
    std::memcpy(hello.token.data(), client->opened.bulk().tokens(0).data(), hello.token.size());
    SslContextPtr context(SSL_CTX_new(TLS_client_method()));
    if (shown) Show(context.get(), *shown);
    SslPtr ssl;
    if (over_tls) {
      ssl.reset(SSL_new(context.get()));
      SSL_set_fd(ssl.get(), fd);
      SSL_set_connect_state(ssl.get());
    }
    const Status status = BulkClientHandshake(fd, ssl.get(), hello, welcome);
    ssl.reset();
    close(fd);
    return status;
  }

  const TlsIdentity ours = MakeTlsIdentity();
  std::unique_ptr<Client> client;
};

TEST_F(ServiceTlsTest, BothPortsDemandACertificateOfTheRoots) {
  StartMutual();
  const TlsIdentity strangers = MakeTlsIdentity();
  EXPECT_EQ(OpenAs(nullptr).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(OpenAs(&strangers).error_code(), grpc::StatusCode::UNAVAILABLE);
  const grpc::Status opened = OpenAs(&ours);
  ASSERT_TRUE(opened.ok()) << opened.error_message();
  EXPECT_TRUE(client->opened.bulk().tls());
  BulkWelcome welcome;
  EXPECT_FALSE(Shake(false, nullptr, welcome).ok()) << "plain";
  EXPECT_FALSE(Shake(true, nullptr, welcome).ok()) << "no certificate";
  EXPECT_FALSE(Shake(true, &strangers, welcome).ok());
  ASSERT_TRUE(Shake(true, &ours, welcome).ok());
  EXPECT_EQ(welcome.code, BulkCode::kOk) << "the token was not used up by those that were turned away";
}

TEST_F(ServiceTlsTest, TextsThatDoNotFitAreRefused) {
  const TlsIdentity other = MakeTlsIdentity();
  EXPECT_TRUE(MakeServerTlsContext({ours.certificate, ours.key, ours.certificate}).ok());
  EXPECT_FALSE(MakeServerTlsContext({"no PEM", ours.key, ""}).ok());
  EXPECT_FALSE(MakeServerTlsContext({ours.certificate, "no PEM", ""}).ok());
  EXPECT_FALSE(MakeServerTlsContext({ours.certificate, other.key, ""}).ok());
  const auto roots = MakeServerTlsContext({ours.certificate, ours.key, "no PEM"});
  EXPECT_EQ(roots.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(roots.status().message().find(ours.key), std::string_view::npos);
}

}  // namespace
}  // namespace terrace::server
