exports.calculateMAC = exports.decrypt = exports.encrypt = exports.deriveSecrets = undefined
