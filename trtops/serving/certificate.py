"""The certificate of an engine: signed facts in the folder that holds it.

A folder holds exactly these files::

    engine.ort | engine.onnx | engine.plan   the engine, named in facts.json
    facts.json                               what is known of it, as below
    inputs.npz                               inputs and golden outputs for a fingerprint
    certificate.sig                          the signature of all other files

``certificate.sig`` has the OpenSSF Model Signing format (:mod:`trtops.system.signing`): a Sigstore bundle
(``application/vnd.dev.sigstore.bundle.v0.3+json``) with ``verificationMaterial.publicKey.hint`` (the SHA-256 of the
public key as PEM text, in hexadecimal) and a ``dsseEnvelope`` around an in-toto statement v1 with the predicate type
``https://model_signing/signature/v1.0``. Its ``predicate.resources`` list the name, ``sha256`` and digest of each file
but the signature; the digest of its only subject is the SHA-256 of these digests as bytes, in their order. The
signature is ECDSA on P-256 with SHA-256, in DER form, over ``DSSEv1 LEN TYPE LEN PAYLOAD``. ``model_signing verify key
FOLDER --signature FOLDER/certificate.sig --public_key key.pub`` accepts it.

``facts.json`` is an object. Digests are SHA-256 in hexadecimal; an absent value is null::

    format        1
    run           id of the run, and "experiment"
    made          seconds since 1970, UTC, as "expires", which may be null
    model         {"name", "sha256"}: the content of the ONNX model (not of its file)
    engine        {"file", "sha256", "bytes", "backend", "options"}: "onnxruntime" or "tensorrt"; options of the loader
    environment   {"backend", "backend_version", "device", "device_sha256", "compute_capability", "driver", "cuda",
                  "cudnn", "os", ...}: where it was built (:class:`trtops.spec.Environment`). An engine is
                  loaded on the same release (backend_version) and kind of device only
    spec_sha256   digest of everything that determines the engine; null if it was built elsewhere
    unknown       what is not known of the engine, in phrases; empty for one that trtops built
    precision     "fp32", "fp16" ...: the requested one
    profiles      [{INPUT: {"min": [..], "opt": [..], "max": [..]}}], empty for static shapes
    inputs        [{"name", "dtype", "shape"}]: numpy's name of the dtype; -1 for a dynamic dimension
    outputs       as inputs
    verdict       {"verdict", "reasons", "evidence", "limits", "margin", "data_sha256", "self_check"}: "good" or
                  "unproven"; "margin" is {"output", "metric", "value", "limit"} of what came closest to its limit;
                  "self_check" is {"verdict", "held", "broken", "skipped"} with names of relations, or null; "limits"
                  is the tolerances
    fingerprint   {OUTPUT: {"atol", "rtol", "agreement"}}

``inputs.npz`` has the arrays ``input_0``, ``input_1`` ... in the order of ``inputs``, and the golden outputs
``output_0`` ... in the order of ``outputs``. NumPy has no bfloat16 and no FP8: those are unsigned integers of the same
width. The engine's outputs match the fingerprint if each has the dtype and shape of the stored one, and

- floating-point elements differ by at most ``atol``, or by at most ``rtol`` of the golden element. Elements that are
  NaN or infinite are the same in both;
- of other elements at least the share ``agreement`` is equal.
"""
