//! Signatures of tokens, checked by the library that also does TLS here.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as with;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes this the process's way to check tokens. The second time changes nothing.
pub(crate) fn install() {
    let _first = PROVIDER.install_default().is_ok();
}

/// This server makes no tokens.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

struct Checks {
    algorithm: Algorithm,
    key: DecodingKey,
}

/// A check of one algorithm by a key of its own family: an RSA key is never read as a secret.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if family(*algorithm) != Some(key.family()) {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(Checks {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

/// The family of a public-key algorithm; none for shared secrets, which are never taken.
fn family(algorithm: Algorithm) -> Option<AlgorithmFamily> {
    match algorithm {
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => Some(AlgorithmFamily::Rsa),
        Algorithm::ES256 | Algorithm::ES384 => Some(AlgorithmFamily::Ec),
        Algorithm::EdDSA => Some(AlgorithmFamily::Ed),
        _ => None,
    }
}

impl JwtVerifier for Checks {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Checks {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let checked = match (self.key.kind(), rsa(self.algorithm), curve(self.algorithm)) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some(algorithm), _) => {
                with::RsaPublicKeyComponents { n, e }.verify(algorithm, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(key), None, Some(algorithm)) => {
                with::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => Err(ring::error::Unspecified),
        };
        checked.map_err(|_| SignatureError::new())
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static with::RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &with::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &with::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &with::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &with::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &with::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &with::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn with::VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::ES256 => &with::ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &with::ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &with::ED25519,
        _ => return None,
    })
}
