"""The settings of TLS and tokens, the same for coordinator and worker."""

from __future__ import annotations

from pydantic import Field, SecretStr

from headrace.telemetry.service_settings import ServiceSettings


class SecuritySettings(ServiceSettings):
    """Fields only; what is built of them is in headrace.wire.tls and headrace.wire.secret.

    Every file is read again when it changes, so that nothing is restarted for a new certificate or token.
    """

    tls_cert: str = Field("", description="PEM file of this service's certificate chain (tls.crt); empty: no TLS.")
    tls_key: str = Field("", description="PEM file of its key (tls.key).")
    tls_ca: str = Field(
        "", description="PEM file of who signs the fleet's certificates (ca.crt): for clients' and for coordinators'."
    )
    require_client_cert: bool = Field(False, description="Serve gRPC only to clients with a certificate signed by tls_ca.")
    # Apart from gRPC, since a kubelet's probes have no certificate.
    require_client_cert_http: bool = Field(False, description="The same for HTTP: admin API, health, metrics.")
    fleet_token_file: str = Field(
        "", description="File of the token by which workers prove to coordinators that they belong to the fleet."
    )
    fleet_token: SecretStr = Field(SecretStr(""), description="The same as a variable; a file is better.")
    allow_plaintext_tokens: bool = Field(
        False, description="Let tokens travel without TLS to and from other machines, where others may read them."
    )
