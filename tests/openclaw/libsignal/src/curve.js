exports.calculateSignature = exports.verifySignature = exports.generateKeyPair = undefined
