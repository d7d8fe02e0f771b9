// Stands in for a package that is in no registry and that only chats by WhatsApp need.
module.exports = {}
